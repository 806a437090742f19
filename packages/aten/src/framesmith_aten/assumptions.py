"""Checks of what a compiler assumes of data, told apart from the program's own.

Note [Assumptions]: in graphs both are calls of `aten._assert_scalar`. How the message begins says who relies on the
condition, and nothing else does: it is what stays of a node wherever the graph goes, and what its failure raises. Who
has a graph run has the failure of an assumption raised as `AssumptionFailed`: by the very messages that the graph
holds, so that no error of the program's is taken for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from functools import wraps
from typing import Final, TypeVar

from torch import fx

from framesmith_aten.contract import AssumptionFailed
from framesmith_guards.torch_adapter import aten

_R = TypeVar("_R")


class Asserted(Enum):
    """Who relies on a condition that a graph checks, by how the message of the check begins.

    `PROGRAM`: it says so itself, and fails with it. `OPERATOR`: a rule for sizes, which may ask for more than the
    operator, or for what that checks itself. `CHOICE`: the tracer, which has followed one of two ways.
    """

    PROGRAM = ""
    OPERATOR = "the compiler assumes: "
    CHOICE = "the compiler has chosen a way: "


_ASSUMPTIONS: Final = (Asserted.OPERATOR, Asserted.CHOICE)


def assumed(what: str, by: Asserted = Asserted.OPERATOR) -> str:
    """The message of a check of an assumption: once however often it is said."""
    return f"{by.value}{what}" if _relying(what) is Asserted.PROGRAM else what


def _relying(message: str) -> Asserted:
    return next((by for by in _ASSUMPTIONS if message.startswith(by.value)), Asserted.PROGRAM)


def is_assertion(node: fx.Node) -> bool:
    """Whether the node checks a condition of numbers at a call."""
    return node.target is aten._assert_scalar.default


def asserted_by(node: fx.Node) -> Asserted | None:
    """Who relies on the condition that the node checks, or None: it checks none."""
    return _relying(str(node.args[1])) if is_assertion(node) else None


def is_assumption(node: fx.Node) -> bool:
    """Whether it checks what a compiler assumes, and the program does not say."""
    return asserted_by(node) in _ASSUMPTIONS


def raising_assumptions(run: Callable[..., _R], nodes: Iterable[fx.Node]) -> Callable[..., _R]:
    """`run`, which runs the graph of these nodes, with AssumptionFailed for its assumptions that fail."""
    messages = {str(node.args[1]) for node in nodes if is_assumption(node)}
    if not messages:
        return run

    @wraps(run)
    def raising(*args: object) -> _R:
        try:
            return run(*args)
        except RuntimeError as error:
            message = str(error)
            if message not in messages:
                raise
            raise AssumptionFailed(message.removeprefix(_relying(message).value)) from error

    return raising
