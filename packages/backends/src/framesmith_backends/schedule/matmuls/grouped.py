"""A grouped program as the fusion of matmuls reads it: calls as matmuls, and who makes and reads each buffer."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from framesmith_backends.ir.dtypes import LOW_PRECISION
from framesmith_backends.ir.expr import Cast, Expr, Load, Ref
from framesmith_backends.ir.fused.matmul import ACCUMULATOR, FusedMatmul, TileShape
from framesmith_backends.ir.kernel import Kernel, RowPass, Store, params_of
from framesmith_backends.ir.matmul import Item
from framesmith_backends.ir.program import BufferView, Call, Program, contiguous_strides
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix, Var
from framesmith_backends.ir.symbolic.size import Size, hint, numel, surely_positive
from framesmith_backends.schedule.fusion.domains import flat_index
from framesmith_backends.schedule.fusion.group import CallNode, Group, Node
from framesmith_backends.schedule.kernels.build import build_kernel
from framesmith_backends.schedule.kernels.index_splitting import split_ranges
from framesmith_backends.schedule.matmuls.operators import OPERANDS, Operands, view_of

#: Types that tensor cores multiply, float32 where it may be rounded for that.
TYPES = ("f16", "bf16", "f32")


@dataclass(frozen=True)
class Grouped:
    """A program with its groups and calls in order; `stored` are the definitions that need memory.

    `items` run at nodes, by their numbers, in the place of these and of the calls `inside`.
    """

    program: Program
    nodes: Sequence[Node]
    stored: frozenset[str]
    items: Mapping[int, tuple[Item, ...]] = field(default_factory=dict)
    inside: frozenset[str] = frozenset()

    def with_items(self, items: Mapping[int, tuple[Item, ...]], inside: set[str]) -> Grouped:
        return replace(self, items={**self.items, **items}, inside=self.inside | inside)

    @cached_property
    def calls(self) -> dict[str, CallNode]:
        return {node.call.name: node for node in self.nodes if isinstance(node, CallNode)}

    @cached_property
    def groups(self) -> list[Group]:
        return [node for node in self.nodes if isinstance(node, Group)]

    @cached_property
    def makers(self) -> dict[str, Group]:
        """The group of each definition."""
        return {d.name: group for group in self.groups for d in group.members}

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """The numbers of the nodes that read each buffer, through views as well; -1 for outputs."""
        found: dict[str, list[int]] = {}

        def read(names: Iterable[object], number: int) -> None:
            for name in names:
                if isinstance(name, str):
                    place = self.program.views.get(name)
                    found.setdefault(name if place is None else place.source, []).append(number)

        for node in self.nodes:
            if isinstance(node, Group):
                read(node.reads, node.number)
            elif node.call.name not in self.program.views:
                read(node.call.needs, node.number)
        read(self.program.outputs, -1)
        return found

    @cached_property
    def written(self) -> set[str]:
        """The buffers that calls write to: when these are read must not change."""
        names = {name for call in self.program.calls.values() if call.effect for name in call.needs}
        return names | {self.program.views[name].source for name in names if name in self.program.views}

    def matmul(self, node: CallNode, symbolic: bool = False) -> FusedMatmul | None:
        """Return the call as a matmul of which nothing but the result is stored, if it is one without effects.

        Its sizes are known unless they may be `symbolic`; its depth is then the hint of an unknown one.
        """
        return None if node.call.effect else matmul_of(self.program, node.call, symbolic)

    def kernel(self, name: str, group: Group) -> Kernel:
        return build_kernel(name, self.program, group, self.stored, scratch=False)

    def pointwise_kernel(self, name: str, group: Group) -> Kernel | None:
        """Return the group as one kernel of known sizes that computes each point by itself, if it is such a kernel."""
        if group.reduced is not None or group.has_effects:
            return None
        (kernel,) = split_ranges(self.kernel(name, group), separate=False)
        if kernel.row or kernel.scratch or kernel.numbers or len(kernel.passes) != 1 or kernel.updates:
            return None
        (one,) = kernel.passes
        plain = not (one.before or one.reductions or one.checks)
        return kernel if plain and all(isinstance(v.size, int) for v in kernel.outer) else None


def matmul_of(program: Program, call: Call, symbolic: bool = False) -> FusedMatmul | None:
    """The call as a matmul of which nothing but the result is stored, or None."""
    split = OPERANDS.get(call.node.target)
    operands = None if split is None else split(call.node)
    if operands is None:
        return None
    a, b = _matrices(program, operands.a), _matrices(program, operands.b)
    layout = program.layouts.get(call.name)
    if a is None or b is None or layout is None or layout.dtype not in TYPES:
        return None
    if any(program.layouts[one.source].dtype != layout.dtype for one in (a, b)):
        return None
    sizes = (*a.shape, *b.shape, *a.strides, *b.strides, a.offset, b.offset, *layout.shape)
    if not (symbolic or all(isinstance(n, int) for n in sizes)) or not all(map(surely_positive, (*a.shape, *b.shape))):
        return None
    if layout.strides != contiguous_strides(layout.shape):
        return None
    loops = Var("pz", a.shape[0]), Var("pm", a.shape[1]), Var("pn", b.shape[2])
    value = _sum(program, operands, loops, layout.dtype)
    if value is None:
        return None
    name = re.sub(r"\W", "_", f"matmul_{call.name}")
    epilogue = pointwise(name, loops, (Store(call.name, flat_index(loops), value),))
    return FusedMatmul(name, a, b, layout.dtype, *loops, hint(a.shape[2]), epilogue, TileShape(64, 64, 32, 4, 3))


def _matrices(program: Program, node: object) -> BufferView | None:
    """Return the view of a matrix, or of a batch of them, with three dimensions."""
    place = view_of(program, node)
    if place is None or len(place.shape) not in (2, 3):
        return None
    if len(place.shape) == 3:
        return place
    return BufferView(place.source, place.offset, (1, *place.shape), (0, *place.strides))


def _sum(program: Program, operands: Operands, loops: tuple[Var, Var, Var], dtype: str) -> Expr | None:
    """An element of the result, rounded once, as cuBLAS does."""
    value: Expr = Ref(ACCUMULATOR, "f32")
    if operands.factor != 1:
        value = value * float(operands.factor)
    if operands.addend is not None and operands.share != 0:
        place = view_of(program, operands.addend)
        if place is None or program.layouts[place.source].dtype != dtype:
            return None
        if not all(isinstance(n, int) for n in (place.offset, *place.shape, *place.strides)):
            return None
        along = loops[3 - len(place.shape) :]
        if any(n not in (1, v.size) for n, v in zip(place.shape, along, strict=True)):
            return None
        steps = [(index.of(v), step) for v, n, step in zip(along, place.shape, place.strides, strict=True) if n != 1]
        added: Expr = Load(place.source, (index.total(steps, place.offset),), dtype)
        added = added if dtype == "f32" else Cast(added, "f32")
        value = value + (added if operands.share == 1 else added * float(operands.share))
    return value if dtype == "f32" else Cast(value, dtype)


def pointwise(name: str, loops: Iterable[Var], stores: tuple[Store, ...]) -> Kernel:
    passes = (RowPass((), (), stores),)
    return Kernel(name, params_of(passes), tuple(loops), (), None, passes)


def sizes_of(matmul: FusedMatmul) -> tuple[Size, ...]:
    return matmul.batch.size, matmul.rows.size, matmul.columns.size


def is_plain(matmul: FusedMatmul) -> bool:
    """Whether nothing is added to the matmul, nor is it scaled."""
    (store,) = matmul.epilogue.passes[0].stores
    value = store.value.value if isinstance(store.value, Cast) else store.value
    return value == Ref(ACCUMULATOR, "f32")


def point_at(loops: Iterable[Var], where: Ix, place: Ix) -> dict[Var, Ix] | None:
    """Return the loops at the point where the index `where` has the value `place`; None if that is not known."""
    if not all(isinstance(var.size, int) for var in loops):
        order = [*loops]
        positions = index.delinearize(place, tuple(var.size for var in order))
        return dict(zip(order, positions, strict=True)) if where == flat_index(order) else None
    steps = [(index.coefficient(where, var), var) for var in loops if var.size != 1]
    if where.const != 0 or not all(isinstance(step, int) and isinstance(var.size, int) for step, var in steps):
        return None
    found = {var: index.ZERO for var in loops if var.size == 1}
    reach = 1
    for step, var in sorted(steps, key=lambda pair: pair[0]):  # type: ignore[arg-type, return-value]
        assert isinstance(step, int) and isinstance(var.size, int)
        if step < reach:
            return None
        found[var] = index.mod(index.floordiv(place, step), var.size)
        reach = step * var.size
    return found


def point_of(loops: Sequence[Var], read: Ix, matmul: FusedMatmul) -> dict[Var, Ix] | None:
    """Return the loops at each element of the matmul, which is read once for each of their values."""
    own = matmul.epilogue.outer
    count = numel(v.size for v in own)
    if numel(v.size for v in loops) != count or index.bounds(read)[1] != count - 1:
        return None
    return point_at(loops, read, flat_index(own))


@dataclass(slots=True)
class Uncast:
    """Reads operands in the low-precision type that they were cast from, for these `inside` nodes alone.

    `names` are casts that are not made, `unread` those among them whose elements are read where they lie.
    """

    grouped: Grouped
    inside: Collection[int]
    names: set[str] = field(default_factory=set)
    unread: set[str] = field(default_factory=set)

    def kind(self, name: str) -> str | None:
        """The low-precision type that a definition casts to float32; None of others."""
        program = self.grouped.program
        d = program.defs.get(name)
        if d is None or not {*self.grouped.readers.get(name, ())} <= {*self.inside}:
            return None
        if d.reduction is not None or d.updates is not None or name in program.outputs:
            return None
        if not isinstance(d.body, Cast) or d.body.dtype != "f32" or d.body.value.dtype not in LOW_PRECISION:
            return None
        return d.body.value.dtype

    def view(self, place: BufferView) -> tuple[BufferView, str]:
        """Return the view that the operand is read from, and its dtype."""
        kind = self.kind(place.source)
        if kind is None:
            return place, self.grouped.program.layouts[place.source].dtype
        self.names.add(place.source)
        source = self._lying(place.source)
        if source is None:
            return place, kind
        self.unread.add(place.source)
        return replace(place, source=source), kind

    def _lying(self, name: str) -> str | None:
        """The buffer whose elements the definition casts, if it lies in memory as they do."""
        program = self.grouped.program
        d = program.defs[name]
        load = d.body.value if isinstance(d.body, Cast) else None
        if not isinstance(load, Load) or load.guard is not None or load.source not in program.layouts:
            return None
        layout = program.layouts[load.source]
        here = tuple(index.ZERO if axis is None else index.of(axis) for axis in d.axes)
        is_same = (layout.shape, layout.strides) == (d.layout.shape, d.layout.strides) and load.index == here
        is_there = load.source not in program.defs or load.source in self.grouped.stored
        return load.source if is_same and is_there else None
