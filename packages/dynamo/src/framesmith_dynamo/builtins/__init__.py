"""Builtins: what calls of Python's own C functions and classes mean to the tracer. Importing loads every table."""

from framesmith_dynamo.builtins import construction, iteration, numbers, operators, output, polyfilled, types
from framesmith_dynamo.builtins.registry import HANDLERS, POLYFILLS, PURE, declare_pure, handles, lookup_handler
from framesmith_dynamo.builtins.value import BuiltinValue

__all__ = [
    "HANDLERS",
    "POLYFILLS",
    "PURE",
    "BuiltinValue",
    "construction",
    "declare_pure",
    "handles",
    "iteration",
    "lookup_handler",
    "numbers",
    "operators",
    "output",
    "polyfilled",
    "types",
]
