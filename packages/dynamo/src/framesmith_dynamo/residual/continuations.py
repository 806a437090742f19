"""Continuation functions (resume functions) of decoded code, cached by instruction and live variables."""

from __future__ import annotations

from collections.abc import Collection

from framesmith_bytecode import Continuation, ContinuationError, make_continuation
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.interpreter.decoded import DecodedCode, decoded
from framesmith_frames import always_offer, skip

NO_CONTINUATION = register_break(
    "no-continuation",
    what="the function cannot be continued behind a graph break",
    why="the rest of it depends on its frame as a whole",
    hint="move the breaking call into a function of its own",
)


def continuation_at(
    code: DecodedCode, index: int, nulls: Collection[int], bound: Collection[str], broken: int
) -> Continuation:
    """Return the continuation of `code` at instruction `index`, with these stack slots NULL and these locals bound.

    It is skipped if it can reach the breaking instruction `broken` again, as in a loop, since each iteration would add
    a nested call. Raises GraphBreak if there can be no continuation.
    """
    place = (index, frozenset(nulls), frozenset(bound))
    known = code.continuations.get(place)
    if known is not None:
        return known
    if code.break_site(broken) in code.broken_at:
        raise GraphBreak(NO_CONTINUATION, "a continuation breaks at the same instruction again")
    known = code.continuations[place] = _make(code, index, place[1], place[2])
    if can_recur(code, index, broken):
        skip(known.code, "continues a loop in which the graph breaks")
    else:
        always_offer(known.code)
        decoded(known.code).continues(code, broken)
    return known


def _make(code: DecodedCode, index: int, nulls: frozenset[int], bound: frozenset[str]) -> Continuation:
    try:
        return make_continuation(code.analyses, code.items[index], null_slots=nulls, bound=bound)
    except ContinuationError as error:
        raise GraphBreak(NO_CONTINUATION, str(error)) from error


def can_recur(code: DecodedCode, start: int, broken: int) -> bool:
    """Whether instruction `broken` can run after instruction `start`."""
    return code.items[broken] in code.analyses.kept_items(code.items[start])
