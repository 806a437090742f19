"""Continuation functions of decoded code, cached: the same place with the same variables is the same code object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType

from framesmith_dynamo.decoded import DecodedCode


@dataclass(frozen=True, slots=True)
class Continuation:
    """Where to go on: instruction `index` of `code` with `depth` stack slots, of which `nulls` are NULL, and the bound `names`."""

    code: DecodedCode
    index: int
    depth: int
    names: tuple[str, ...]
    nulls: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Resumed:
    """A continuation's code. Its arguments are the stack slots that are not NULL, deepest first, then the variables."""

    code: CodeType
    stack_arguments: int


def live_variables(code: DecodedCode, targets: Sequence[int]) -> list[str]:
    raise NotImplementedError("continuations")


def continue_at(place: Continuation) -> Resumed:
    raise NotImplementedError("continuations")
