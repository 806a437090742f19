"""Calls of Python's C functions and classes. Importing loads every table."""

from framesmith_dynamo.builtins import construction, iteration, numbers, operators, output, polyfilled, types
from framesmith_dynamo.builtins.value import BuiltinValue

__all__ = ["BuiltinValue", "construction", "iteration", "numbers", "operators", "output", "polyfilled", "types"]
