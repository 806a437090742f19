"""Recurrences in a normal form: each carried value with no more than those that it depends on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from framesmith_backends.ir.expr import Carried, Expr, Recurrence, transform, walk


def carried_numbers(e: Expr) -> frozenset[int]:
    """The numbers of the carried values that a step reads."""
    return frozenset(node.number for node in walk(e) if isinstance(node, Carried))


def with_carried(e: Expr, value: Callable[[Carried], Expr]) -> Expr:
    """The step of other carried values."""
    return transform(e, lambda node: value(node) if isinstance(node, Carried) else None)


def recurrence(starts: Sequence[Expr], steps: Sequence[Expr], which: int, after: bool) -> Recurrence:
    """Number `which` of a system, with the others that it depends on, in order: equal ones are the same node."""
    needed, waiting = {which}, [which]
    while waiting:
        fresh = carried_numbers(steps[waiting.pop()]) - needed
        needed |= fresh
        waiting += fresh
    order = sorted(needed)

    def renumbered(one: Carried) -> Expr:
        return Carried(order.index(one.number), one.dtype)

    moved = tuple(with_carried(steps[k], renumbered) for k in order)
    at = order.index(which)
    return Recurrence(tuple(starts[k] for k in order), moved, at, after, starts[which].dtype)


def parts(e: Recurrence) -> tuple[Recurrence, ...]:
    """Each carried value before the step, as a recurrence of its own."""
    return tuple(recurrence(e.starts, e.steps, k, False) for k in range(len(e.steps)))
