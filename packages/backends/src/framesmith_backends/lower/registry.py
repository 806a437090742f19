"""The table of lowering rules: ATen overload name -> rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from framesmith_backends.lower.tensor import Tensor

Rule = Callable[..., Tensor | tuple[Tensor | None, ...]]
R = TypeVar("R", bound=Rule)


# Rules that compute new elements.
RULES: dict[str, Rule] = {}
# Rules whose result is the argument seen through an index map (the operation is a view in ATen too).
VIEWS: dict[str, Rule] = {}
# Rules for calls of functions of `framesmith_aten.graphs.control_flow`, which take bodies.
BODY_RULES: dict[object, Rule] = {}


def rule(*names: str, table: dict[str, Rule] = RULES) -> Callable[[R], R]:
    """Register the decorated function for `aten.<name>`; a name without overload means `.default`."""

    def register(function: R) -> R:
        for name in names:
            key = f"aten.{name}" if "." in name else f"aten.{name}.default"
            if key in table:
                raise ValueError(f"{key} has two lowering rules")
            table[key] = function
        return function

    return register


def body_rule(target: object) -> Callable[[R], R]:
    """Register the decorated function for calls of a function of control flow."""

    def register(function: R) -> R:
        BODY_RULES[target] = function
        return function

    return register


def view(*names: str) -> Callable[[R], R]:
    return rule(*names, table=VIEWS)


def add_row(function: Rule, *names: str) -> None:
    rule(*names)(function)
