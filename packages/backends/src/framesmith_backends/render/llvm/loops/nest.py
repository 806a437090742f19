"""Loops in LLVM IR: one loop, one in blocks of steps, and blocks of lanes along a variable with a rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from framesmith_backends.ir.expr import loads
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.render.llvm.builder import Value, constant, first_lanes
from framesmith_backends.render.llvm.loops.emit import ZERO, lane_numbers
from framesmith_backends.render.llvm.loops.state import Rendering

Body = Callable[[], None]


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


def blocked_loop(
    r: Rendering, end: Value, block: int, step: int, var: Var, inside: Body, behind: Body, sure: bool
) -> None:
    """A loop over `var` up to `end`, with `behind` at the end of each block of so many points."""
    with opened_loop(r, constant(0, "i64"), end, block, None, sure) as start:
        stop = r.b.least(r.b.add(start, block), end)
        with opened_loop(r, start, stop, step, var):
            inside()
        behind()


# Note [The rest, again]: what remains behind the last whole block of lanes is less than a block. Under a mask it takes
# as long as a block, and its stores longer: 25 cycles on a Zen 4 (7 ns of the 19 that a row of 66 numbers took). Where
# nothing is lost by computing an element twice, the rest is the block of lanes that ends where the loop does, without
# a mask: the elements in which it overlaps the block before get the same values again. So no element may be read that
# the loop writes, nothing may be summed up, and no index may be known by its block's being a multiple of the lanes.


def lane_blocks(r: Rendering, lane: Var, low: Value, high: Value, inside: Body, repeatable: bool = False) -> None:
    """Whole blocks of lanes over [low, high), then the rest. `low` is a multiple of the lanes.

    The rest is computed under a mask or, if the body is `repeatable`, as in Note [The rest, again].
    """
    if not isinstance(lane.size, int):
        if repeatable and r.lanes > 1:
            _any_repeated_lane_blocks(r, lane, low, high, inside)
            return
        end = whole_lanes(r, high)
        with opened_loop(r, low, end, r.lanes, lane, False):
            inside()
        any_lane_tail(r, lane, end, high, inside)
        return
    whole = lane.size // r.lanes * r.lanes
    static = high.text == str(lane.size)
    if whole:
        stop = constant(whole, "i64") if static else r.b.least(high, whole)
        with opened_loop(r, low, stop, r.lanes, lane, static):
            inside()
    if lane.size > whole:
        lane_tail(r, lane, high, whole, static, inside, repeatable)


def whole_lanes(r: Rendering, size: Value) -> Value:
    """The largest multiple of the lanes, a power of two, up to a size known only at the call."""
    known = size in r.entry.values.values()
    return r.at_entry(("whole", size), lambda: r.b.binary("and", size, -r.lanes), known)


def _any_repeated_lane_blocks(r: Rendering, lane: Var, low: Value, high: Value, inside: Body) -> None:
    """`lane_blocks` of a repeatable body for any size: the last block begins early, or is masked as the only one."""
    size = r.size_of(lane.size)
    last = r.at_entry(("last", size), lambda: r.b.sub(size, r.lanes))
    fills = r.at_entry(("fills", size), lambda: r.b.compare("sge", last, 0))
    stop = r.at_entry(("stop", size), lambda: r.b.select(fills, high, low), low.text == "0" and high == size)
    with opened_loop(r, low, stop, r.lanes, None, False) as block:
        r.set_variable(lane, r.b.least(block, last))
        inside()
    any_lane_tail(r, lane, stop, high, inside)


def any_lane_tail(r: Rendering, lane: Var, whole: Value, high: Value, inside: Body) -> None:
    """The lanes in [whole, high), fewer than a block, if there are any."""
    if r.lanes == 1:
        return
    outer = r.b.out
    body: list[object] = []
    r.enter(body, lane, whole)
    known = {whole, high} <= set(r.entry.values.values())
    # The number of lanes in [whole, high), in every lane: in 32 bits, which are compared faster than 64.
    rest = r.at_entry(
        ("rest", whole, high), lambda: r.b.splat(r.b.convert("trunc", r.b.sub(high, whole), "i32"), r.lanes), known
    )
    r.mask = r.b.compare("slt", lane_numbers(r, "i32"), rest)
    inside()
    r.mask = None
    r.leave(outer)
    _where(r, "ult", whole, high, body)


def _where(r: Rendering, predicate: str, a: Value, c: Value | int, body: list[object]) -> None:
    """The body, run where the comparison holds."""
    n = r.b.name()[1:]
    holds = r.b.compare(predicate, a, c)
    r.b.out += [f"br i1 {holds.text}, label %{n}.tail, label %{n}.done", f"{n}.tail:", body]
    r.b.out += [f"br label %{n}.done", f"{n}.done:"]


def _hidden_zero(r: Rendering) -> Value:
    """A zero that LLVM does not know to be one.

    LLVM 22 drops the mask of a load where half of it is known to be false and the rest is not known: it then reads
    elements that are not there.
    """
    r.b.declare(ZERO)
    return r.b.emit("load volatile i64, ptr @fs.zero, align 8", "i64")


def lane_tail(
    r: Rendering, lane: Var, high: Value, whole: int, static: bool, inside: Body, repeatable: bool = False
) -> None:
    """The last block: run only by the range that reaches the end."""
    outer = r.b.out
    body: list[object] = []
    size = lane.size
    assert isinstance(size, int)
    if repeatable and whole:
        r.enter(body, lane, constant(size - r.lanes, "i64"))
    elif r.lanes > 1 and any(load.guard is not None for one in r.kernel.passes for load in loads(*one.values)):
        first = r.b.add(_hidden_zero(r), whole)
        r.enter(body, lane, first)
        r.mask = r.b.compare("ult", lane_numbers(r), r.b.sub(constant(size, "i64"), first))
    else:
        r.enter(body, lane, constant(whole, "i64"))
        r.mask = first_lanes(size - whole, r.lanes) if r.lanes > 1 else None
    inside()
    r.mask = None
    r.leave(outer)
    if static:
        outer.append(body)
    else:
        _where(r, "eq", high, size, body)
