"""Targets of `compile()`: functions, modules and other callables, and their compiled counterparts."""
