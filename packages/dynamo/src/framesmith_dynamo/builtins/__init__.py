"""Builtins: what calls of Python's own C functions and classes mean to the tracer. Importing loads every table."""

from framesmith_dynamo.builtins import construction, iteration, numbers, operators, output, polyfilled, types
from framesmith_dynamo.builtins.value import BuiltinValue

__all__ = ["BuiltinValue", "construction", "iteration", "numbers", "operators", "output", "polyfilled", "types"]
