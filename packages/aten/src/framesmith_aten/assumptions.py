"""Checks of a compiler's assumptions on data, separate from the program's own checks.

Note [Assumptions]: in graphs both are calls of `aten._assert_scalar`. The beginning of the message alone says who
relies on the condition: it is what remains of a node wherever the graph goes, and the text of its error. The runner of
a graph turns the error of a failed assumption into `AssumptionFailed`, by the messages in the graph, so that no error
of the program's is affected.
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
    """The party that relies on a condition which a graph checks, by the beginning of the check's message.

    `PROGRAM`: the program's own check. `OPERATOR`: a rule for sizes, which may require more than the operator, or
    conditions that it checks itself. `CHOICE`: the tracer, which has followed one of two branches.
    """

    PROGRAM = ""
    OPERATOR = "the compiler assumes: "
    CHOICE = "the compiler has chosen a way: "


_ASSUMPTIONS: Final = (Asserted.OPERATOR, Asserted.CHOICE)


def assumed(what: str, by: Asserted = Asserted.OPERATOR) -> str:
    """Return the message of an assumption's check; idempotent."""
    return f"{by.value}{what}" if _relying(what) is Asserted.PROGRAM else what


def _relying(message: str) -> Asserted:
    return next((by for by in _ASSUMPTIONS if message.startswith(by.value)), Asserted.PROGRAM)


def is_assertion(node: fx.Node) -> bool:
    """Whether the node checks a scalar condition at a call."""
    return node.target is aten._assert_scalar.default


def asserted_by(node: fx.Node) -> Asserted | None:
    """Return who relies on the condition that the node checks; None if it checks none."""
    return _relying(str(node.args[1])) if is_assertion(node) else None


def is_assumption(node: fx.Node) -> bool:
    """Whether the node checks a compiler's assumption."""
    return asserted_by(node) in _ASSUMPTIONS


def raising_assumptions(run: Callable[..., _R], nodes: Iterable[fx.Node]) -> Callable[..., _R]:
    """Return `run`, which runs the graph of these nodes, raising AssumptionFailed for failed assumptions."""
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
