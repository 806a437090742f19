"""Loops in LLVM IR: one loop, and the blocks of lanes along a variable with a masked rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from framesmith_backends.ir.expr import loads
from framesmith_backends.ir.index import Var
from framesmith_backends.render.llvm.builder import Value, constant
from framesmith_backends.render.llvm.state import Rendering


@contextmanager
def opened_loop(
    r: Rendering, begin: Value, end: Value, step: int, var: Var | None = None, sure: bool = True
) -> Iterator[Value]:
    """A loop over [begin, end) whose body is written inside the `with`; `sure`: it runs at least once."""
    n = r.b.name()[1:]
    value, following = Value(f"%{n}.i", "i64"), Value(f"%{n}.next", "i64")
    body: list[object] = []
    outer = r.b.out
    r.enter(body, var, value)
    yield value
    r.leave(outer)
    outer += [f"br label %{n}.pre", f"{n}.pre:"]
    if sure:
        outer.append(f"br label %{n}.body")
    else:
        outer.append(f"%{n}.any = icmp ult i64 {begin.text}, {end.text}")
        outer.append(f"br i1 %{n}.any, label %{n}.body, label %{n}.exit")
    outer += [
        f"{n}.body:",
        f"{value.text} = phi i64 [ {begin.text}, %{n}.pre ], [ {following.text}, %{n}.latch ]",
        body,
        f"br label %{n}.latch",
        f"{n}.latch:",
        f"{following.text} = add nuw nsw i64 {value.text}, {step}",
        f"%{n}.more = icmp ult i64 {following.text}, {end.text}",
        f"br i1 %{n}.more, label %{n}.body, label %{n}.exit",
        f"{n}.exit:",
    ]


def lane_blocks(r: Rendering, lane: Var, low: Value, high: Value, inside: Callable[[], None]) -> None:
    """Whole blocks of lanes over [low, high), then the rest under a mask. `low` is a multiple of the lanes."""
    whole = lane.size // r.lanes * r.lanes
    static = high.text == str(lane.size)
    if whole:
        stop = constant(whole, "i64")
        if not static:
            stop = r.b.select(r.b.compare("ult", high, whole), high, stop)
        with opened_loop(r, low, stop, r.lanes, lane, static):
            inside()
    if lane.size > whole:
        lane_tail(r, lane, high, whole, static, inside)


def _lane_numbers(r: Rendering) -> Value:
    return Value(f"<{', '.join(f'i64 {k}' for k in range(r.lanes))}>", "i64", r.lanes)


def _reads_under_conditions(r: Rendering) -> bool:
    roots = [s.value for one in r.kernel.passes for s in (*one.stores, *one.before)]
    roots += [a.value for one in r.kernel.passes for a in one.reductions]
    return any(load.guard is not None for load in loads(*roots))


def _hidden_zero(r: Rendering) -> Value:
    """A zero that LLVM does not know to be one.

    LLVM 22 drops the mask of a load where half of it is known to be false and the rest is not known: what is read there
    is then whatever lies in memory.
    """
    r.b.declare("@fs.zero = internal global i64 0")
    return r.b.emit("load volatile i64, ptr @fs.zero, align 8", "i64")


def lane_tail(r: Rendering, lane: Var, high: Value, whole: int, static: bool, inside: Callable[[], None]) -> None:
    """The last block: run only by the range that reaches the end."""
    outer = r.b.out
    body: list[object] = []
    size = lane.size
    if r.lanes > 1 and _reads_under_conditions(r):
        first = r.b.add(_hidden_zero(r), whole)
        r.enter(body, lane, first)
        r.mask = r.b.compare("ult", _lane_numbers(r), r.b.sub(constant(size, "i64"), first))
    else:
        r.enter(body, lane, constant(whole, "i64"))
        flags = ", ".join(f"i1 {'true' if whole + k < size else 'false'}" for k in range(r.lanes))
        r.mask = Value(f"<{flags}>", "i1", r.lanes) if r.lanes > 1 else None
    inside()
    r.mask = None
    r.leave(outer)
    if static:
        outer.append(body)
        return
    n = r.b.name()[1:]
    reaches = r.b.compare("eq", high, lane.size)
    outer += [f"br i1 {reaches.text}, label %{n}.tail, label %{n}.done", f"{n}.tail:", body]
    outer += [f"br label %{n}.done", f"{n}.done:"]
