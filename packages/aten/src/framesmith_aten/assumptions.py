"""Checks of what a compiler assumes of data, told apart from the program's own.

Note [Assumptions]: in graphs both are calls of `aten._assert_scalar`. The message of an assumption begins as no program
begins one, wherever the graph goes, and who has a graph run has its failure raised as `AssumptionFailed`: by the very
messages that the graph holds, so that no error of the program's is taken for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Final, TypeVar

from torch import fx

from framesmith_aten.contract import AssumptionFailed
from framesmith_guards.torch_adapter import aten

_R = TypeVar("_R")

#: How the message of a check begins that is the compiler's own.
_ASSUMED: Final = "the compiler assumes: "


def assumed(what: str) -> str:
    """The message of a check of an assumption: once however often it is said."""
    return what if what.startswith(_ASSUMED) else f"{_ASSUMED}{what}"


def is_assertion(node: fx.Node) -> bool:
    """Whether the node checks a condition of numbers at a call."""
    return node.target is aten._assert_scalar.default


def is_assumption(node: fx.Node) -> bool:
    """Whether it checks what a compiler assumes, and the program does not say."""
    return is_assertion(node) and str(node.args[1]).startswith(_ASSUMED)


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
            if str(error) not in messages:
                raise
            raise AssumptionFailed(str(error).removeprefix(_ASSUMED)) from error

    return raising
