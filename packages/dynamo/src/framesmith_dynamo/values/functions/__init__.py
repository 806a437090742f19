"""Python functions, binding of their arguments, and their wrappers."""
