"""Scans whose bodies are pointwise in what they carry and in their slices: definitions that step, with their users.

A body is lowered once, of tensors that stand for what is carried, and of slices at a variable along which it steps. Its
definitions are made part of each other: a result is an expression of carried values, each at a position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import fx

from framesmith_aten.graphs import control_flow
from framesmith_backends.ir.dtypes import compute_type
from framesmith_backends.ir.expr import (
    Carried,
    Const,
    Expr,
    Index,
    Load,
    Op,
    cast,
    children,
    guarded,
    loads,
    rebuild,
    substitute,
    transform,
    variables,
)
from framesmith_backends.ir.ops import STEPS
from framesmith_backends.ir.program import Program
from framesmith_backends.ir.recurrences import recurrence
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix, Var
from framesmith_backends.ir.symbolic.size import hint, surely_positive
from framesmith_backends.lower.registry import body_rule
from framesmith_backends.lower.scope import Decline, Scope
from framesmith_backends.lower.tensor import Operand, Shape, Tensor, axes_of, axis, element, point, whole

#: Carried values at different positions that one result may depend on.
MOST_POSITIONS = 16
CARRIED = "carried:"


@dataclass(frozen=True, slots=True)
class Position:
    """A carried value at a position of its own dimensions, in the variables of whoever reads it there."""

    number: int
    where: tuple[Ix, ...]


@dataclass(slots=True)
class Stepping:
    """A scan being lowered: `starts` and `steps` of the carried values, in the variables of their own dimensions.

    `along` is the variable of the slices, `shapes` and `dtypes` are those of the carried values, `results` are the
    body's, with their shapes. `made` has the definitions of carried values by position, shape of the stack, and whether
    they are those after a step.
    """

    scope: Scope
    along: Var
    reverse: bool
    shapes: list[Shape]
    dtypes: list[str]
    results: list[tuple[Shape, Expr]] = field(default_factory=list)
    starts: list[Expr] = field(default_factory=list)
    steps: list[Expr] = field(default_factory=list)
    made: dict[tuple[Position, Shape, bool], Tensor] = field(default_factory=dict)


@body_rule(control_flow.scan)
def _scan(
    s: Scope, body: fx.GraphModule, counts: Sequence[int], reverse: bool, *operands: Operand
) -> tuple[Tensor | None, ...]:
    carries, sliced = counts
    starts, xs, captured = operands[:carries], _tensors(operands[carries:][:sliced]), operands[carries + sliced :]
    if not xs:
        raise Decline("a scan over nothing")
    along = Var("step", xs[0].shape[0])
    st = Stepping(s, along, reverse, [_shape(one) for one in starts], [_dtype(one) for one in starts])
    results = _lowered(st, body, [*_slices(xs, along), *captured])
    steps, given = results[:carries], results[carries:]
    for (shape, value), start, own, dtype in zip(steps, starts, st.shapes, st.dtypes, strict=True):
        if shape != own or value.dtype != dtype:
            raise Decline("carried values that change their shape or type")
        st.steps.append(value)
        st.starts.append(element(start, point(shape), shape, dtype))
    stacks = [_stack(st, shape, value) for shape, value in given]
    return (*(_last(st, number) for number in range(carries)), *stacks)


@body_rule(control_flow.associative_scan)
def _associative_scan(
    s: Scope, body: fx.GraphModule, count: int, reverse: bool, *operands: Operand
) -> tuple[Tensor | None, ...]:
    """The first slices are carried as they are: no start is neutral to every body."""
    xs, captured = _tensors(operands[:count]), operands[count:]
    along = Var("step", xs[0].shape[0])
    slices = _slices(xs, along)
    st = Stepping(s, along, reverse, [x.shape for x in slices], [x.dtype for x in slices])
    results = _lowered(st, body, [*slices, *captured])
    first = index.const(along.size - 1) if reverse else index.ZERO
    begins = Op("eq", Index(index.of(along)), Index(first))
    for (shape, value), x in zip(results, slices, strict=True):
        if shape != x.shape or value.dtype != x.dtype:
            raise Decline("joined values that change their shape or type")
        inner = compute_type(x.dtype)
        chosen = Op("where", begins, element(x, point(shape), shape, inner), cast(value, inner))
        st.steps.append(x.at(point(shape)) if along.size == 1 else cast(chosen, x.dtype))
        st.starts.append(Const(0, x.dtype))
    return tuple(_stack(st, st.shapes[k], st.steps[k]) for k in range(count))


def _tensors(operands: Sequence[Operand]) -> list[Tensor]:
    found = [one for one in operands if isinstance(one, Tensor)]
    if len(found) < len(operands) or not all(one.shape for one in found):
        raise Decline("slices of what is no tensor")
    return found


def _shape(start: Operand) -> Shape:
    return start.shape if isinstance(start, Tensor) else ()


def _dtype(start: Operand) -> str:
    if not isinstance(start, Tensor):
        raise Decline("a carried number")
    return start.dtype


def _slices(xs: Sequence[Tensor], along: Var) -> list[Tensor]:
    """The slice of each tensor at the variable."""
    if any(x.shape[0] != along.size for x in xs):
        raise Decline("slices of different lengths")
    return [x.viewed(x.shape[1:], (index.of(along), *point(x.shape[1:]))) for x in xs]


def _lowered(st: Stepping, body: fx.GraphModule, rest: Sequence[Operand]) -> list[tuple[Shape, Expr]]:
    """The results of the body as expressions of `Load`s of carried values, in the variables of their dimensions."""
    assert st.scope.lower_body is not None
    carried = [
        whole(f"{CARRIED}{k}", shape, dtype) for k, (shape, dtype) in enumerate(zip(st.shapes, st.dtypes, strict=True))
    ]
    program, results = st.scope.lower_body(body, [*carried, *rest])
    for d in program.defs.values():
        if d.reduction is not None or d.scan is not None or d.failure is not None or d.updates is not None:
            raise Decline(f"a body that is not pointwise: {d.origin}")
    st.results = [(one.shape, _expanded(program, one.at(point(one.shape)))) for one in results]
    return st.results


def _expanded(program: Program, value: Expr) -> Expr:
    """The value with the body's definitions made part of it."""

    def rule(e: Expr) -> Expr | None:
        d = program.defs.get(e.source) if isinstance(e, Load) else None
        if d is None or not isinstance(e, Load):
            return None
        where = {v: ix for v, ix in zip(d.axes, e.index, strict=True) if v is not None}
        key = (d.name, e.index)
        if key not in done:
            done[key] = transform(substitute(d.body, where), rule)
        return guarded(done[key], e.guard)

    done: dict[tuple[str, tuple[Ix, ...]], Expr] = {}
    return transform(value, rule)


def _number_of(e: Expr) -> int | None:
    """The number of the carried value that is read."""
    if isinstance(e, Load) and e.source.startswith(CARRIED):
        if e.guard is not None:
            raise Decline("a carried value that is read under a condition")
        return int(e.source.removeprefix(CARRIED))
    return None


def _positions(e: Expr) -> list[Position]:
    return [Position(number, load.index) for load in loads(e) if (number := _number_of(load)) is not None]


def _step_at(st: Stepping, position: Position) -> Expr:
    """The carried value after the step, where it is read."""
    shape = st.shapes[position.number]
    return substitute(st.steps[position.number], _values(shape, position.where))


def _values(shape: Shape, where: Sequence[Ix]) -> dict[Var, Ix]:
    return {axis(k, size): ix for k, (size, ix) in enumerate(zip(shape, where, strict=True)) if size != 1}


def _system(st: Stepping, positions: Sequence[Position]) -> dict[Position, Expr]:
    """The positions that these depend on, with the value after the step at each."""
    found: dict[Position, Expr] = {}
    waiting = [*positions]
    while waiting:
        position = waiting.pop()
        if position in found:
            continue
        if len(found) == MOST_POSITIONS:
            raise Decline("steps that read what is carried at other positions")
        found[position] = _step_at(st, position)
        waiting += _positions(found[position])
    return found


def _stack(st: Stepping, shape: Shape, value: Expr) -> Tensor:
    """The stack of a body's result."""
    system = _system(st, _positions(value))
    steps = {step: position for position, step in system.items() if _positions(step)} if st.along.size != 1 else {}

    def changed(e: Expr) -> Expr:
        """The value with carried values before the step, and after it, as definitions."""
        if e not in done:
            if e in steps:
                done[e] = _read(st, system, steps[e], shape, after=True)
            elif (number := _number_of(e)) is not None and isinstance(e, Load):
                done[e] = _read(st, system, Position(number, e.index), shape, after=False)
            elif children(e):
                done[e] = rebuild(e, tuple(changed(part) for part in children(e)))
            else:
                done[e] = e
        return done[e]

    done: dict[Expr, Expr] = {}
    found = substitute(changed(value), _outside(st, shape))
    if isinstance(found, Load) and found.index == point((st.along.size, *shape)):
        made = st.scope.program.defs.get(found.source)
        if made is not None and made.name in st.scope.defined:
            return whole(found.source, (st.along.size, *shape), found.dtype)
    return _define(st, shape, found)


def _read(st: Stepping, system: Mapping[Position, Expr], position: Position, shape: Shape, after: bool) -> Expr:
    """The carried value as an element of a definition, at the point of a stack of that shape."""
    if st.along.size == 1:
        return _start_at(st, position)
    here = (index.of(st.along), *point(shape))
    return Load(_carried(st, system, position, shape, after).source, here, st.dtypes[position.number])


def _start_at(st: Stepping, position: Position) -> Expr:
    return substitute(st.starts[position.number], _values(st.shapes[position.number], position.where))


def _carried(st: Stepping, system: Mapping[Position, Expr], position: Position, shape: Shape, after: bool) -> Tensor:
    """The definition of what is carried at each point of a stack: before the step, or after it."""
    key = (position, shape, after)
    if key not in st.made:
        order = sorted(system, key=lambda one: (one.number, repr(one.where)))

        def numbered(e: Expr) -> Expr | None:
            number = _number_of(e)
            return None if number is None else Carried(order.index(Position(number, e.index)), e.dtype)  # type: ignore[union-attr]

        starts = [_start_at(st, one) for one in order]
        steps = [transform(system[one], numbered) for one in order]
        found = recurrence(starts, steps, order.index(position), after)
        body = substitute(found, _outside(st, shape))
        made = _define(st, shape, body)
        st.made[key] = st.scope.scanned(made, STEPS, axis(0, st.along.size), st.reverse)
    return st.made[key]


def _outside(st: Stepping, shape: Shape) -> dict[Var, Ix]:
    """The variables of a stack for those of a slice, and for the one along which is stepped."""
    moved = {axis(k, size): index.of(axis(k + 1, size)) for k, size in enumerate(shape)}
    return {**moved, st.along: index.of(axis(0, st.along.size))}


def _define(st: Stepping, shape: Shape, body: Expr) -> Tensor:
    """A stack of these elements, its loops in the order in which the slices lie in memory."""
    whole_shape = (st.along.size, *shape)
    axes = axes_of(whole_shape)
    layout = st.scope.layout_for(whole_shape, body.dtype)
    return st.scope.define(layout, _in_memory_order(st, shape, axes), axes, body)


def _in_memory_order(st: Stepping, shape: Shape, axes: Sequence[Var | None]) -> tuple[Var, ...]:
    """The variables of a stack from the largest step to the smallest, in what most of them move through.

    It is that of all stacks of the shape, so that they share a kernel.
    """
    loops, outside = tuple(v for v in axes if v is not None), _outside(st, shape)
    read = [load for own, value in st.results if own == shape for load in loads(value) if _number_of(load) is None]
    guide = max(read, key=lambda load: len(variables(load)), default=None)
    if guide is None:
        return loops
    flat = index.total(zip(guide.index, st.scope.program.layouts[guide.source].steps, strict=True))
    known = {v: index.coefficient(index.substitute(flat, outside), v) for v in loops}
    if any(not step for step in known.values()):
        return loops
    return tuple(sorted(loops, key=lambda v: -abs(hint(known[v] or 0))))


def _last(st: Stepping, number: int) -> Tensor | None:
    """The carried value after the last step."""
    size, shape = st.along.size, st.shapes[number]
    if not surely_positive(size):
        raise Decline("carried values after what may be no step")
    stack = _stack(st, shape, _step_at(st, Position(number, point(shape))))
    end = index.ZERO if st.reverse else index.const(size - 1)
    return stack.viewed(shape, (end, *point(shape)))
