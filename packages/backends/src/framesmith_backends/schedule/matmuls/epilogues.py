"""GEMM epilogue fusion: matmuls of a GPU that run as one kernel with the pointwise kernel that reads them.

A matmul has one such reader if a group reads it at its own point, nothing else reads it but the graph's
outputs, and the group reduces nothing. A matmul that no such group reads may be a kernel by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import fx

from framesmith_backends.ir.expr import Cast, Expr, Load, Ref, loads, transform
from framesmith_backends.ir.fused.matmul import ACCUMULATOR, FusedMatmul, Rest, TileShape
from framesmith_backends.ir.kernel import Kernel, Pass, Store, params_of
from framesmith_backends.ir.matmul import Item
from framesmith_backends.ir.program import BufferView, Call, Layout, Program, contiguous_strides
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix, Var
from framesmith_backends.schedule.fusion.group import CallNode, Group, Node
from framesmith_backends.schedule.kernels.build import build_kernel
from framesmith_backends.schedule.kernels.index_splitting import split_ranges
from framesmith_backends.schedule.kernels.loops import arrange, rewrite_indices
from framesmith_backends.schedule.matmuls.blas_steps import view_of
from framesmith_guards.torch_adapter import aten

#: Types that tensor cores multiply, float32 where it may be rounded for that.
TYPES = ("f16", "bf16", "f32")


@dataclass(frozen=True, slots=True)
class Operands:
    """The operands of a call that computes factor * (a @ b) + share * addend."""

    a: object
    b: object
    addend: object = None
    factor: float = 1
    share: float = 1


@dataclass(frozen=True, slots=True)
class Prologue:
    """An operand's computation for one matmul alone: the kernel of the node `at`, or `value` within the matmul."""

    kernel: Kernel
    value: Expr
    at: int


@dataclass(frozen=True, slots=True)
class Fusable:
    """A matmul that may run with the node numbered `at`, which is its reader or itself.

    In the present form that is the call, and then `kernel`. `matmul` has some tile; it is computed in the one chosen.
    An operand that has a prologue is computed by that one's kernel, or within the matmul.
    """

    call: Call
    kernel: Kernel | None
    matmul: FusedMatmul
    at: int
    prologues: tuple[Prologue | None, Prologue | None] = (None, None)

    @property
    def ways(self) -> list[tuple[bool, bool]]:
        """Return the operands that prologues may compute; one kernel for both is left out for both."""
        first, second = (one is not None for one in self.prologues)
        found = [(a, b) for a in (False, True)[: 1 + first] for b in (False, True)[: 1 + second]]
        together = first and second and len(self._nodes((True, True))) == 1
        return [(a, b) for a, b in found if a == b or not together]

    def _nodes(self, computed: tuple[bool, bool]) -> dict[int, Kernel]:
        """The kernels that compute those operands, by their nodes' numbers."""
        both = zip(self.prologues, computed, strict=True)
        return {one.at: one.kernel for one, is_meant in both if one is not None and is_meant}

    def taken(self, tile: TileShape) -> frozenset[int]:
        """The nodes whose kernels are not launched, as prologues compute them."""
        return frozenset(self._nodes(tile.computed))

    def before(self, tile: TileShape | None = None) -> tuple[Kernel, ...]:
        """The kernels that compute operands beforehand, in such tiles or in the present form."""
        gone = frozenset[int]() if tile is None else self.taken(tile)
        return tuple(kernel for at, kernel in self._nodes((True, True)).items() if at not in gone)

    def in_tiles(self, tile: TileShape) -> FusedMatmul:
        """The matmul in such tiles, before its depth is split."""
        both = zip(self.prologues, tile.computed, strict=True)
        first, second = (one.value if one is not None and within else None for one, within in both)
        return replace(self.matmul, tile=tile, prologues=(first, second))

    def items(self, tile: TileShape) -> tuple[Item, ...]:
        """Return the items that compute all of it in such tiles, but for the kernels before."""
        whole = self.in_tiles(tile)
        return in_parts(whole) if tile.splits > 1 else evenly(whole) if tile.evenly else (whole,)

    def added(self, tile: TileShape, device: str) -> dict[str, Layout]:
        """The layouts of buffers that these need besides."""
        if tile.splits == 1 and not tile.evenly:
            return {}
        one = self.matmul
        shape = (tile.splits, one.batch.size, one.rows.size, one.columns.size)
        if tile.evenly:
            shape = (tile.evenly, 2, tile.rows, tile.columns)
        return {parts_name(one): Layout(shape, contiguous_strides(shape), "f32", device)}


#: For each matmul that is to run in another form than the present one: its tile.
Choose = Callable[[Sequence[Fusable], Program], Mapping[str, TileShape]]


def fusable_matmuls(
    program: Program, nodes: Sequence[Node], stored: frozenset[str], needed: Collection[str]
) -> list[Fusable]:
    """The matmuls among the nodes that may run otherwise; those in `needed` are read by calls."""
    found: dict[int, Fusable] = {}
    written = written_by_effects(program)
    readers: dict[str, list[Group]] = {}
    for group in (node for node in nodes if isinstance(node, Group)):
        for name in {load.source for one in group.members for load in loads(one.body)}:
            readers.setdefault(name, []).append(group)
    bindings = {binding.source for binding in program.bindings.values()}
    numbers = {node.call.name: node.number for node in nodes if isinstance(node, CallNode)}
    for node in nodes:
        if not isinstance(node, CallNode) or node.call.effect or node.call.name in bindings:
            continue
        matmul = matmul_of(program, node.call)
        if matmul is None or {matmul.a.source, matmul.b.source, node.call.name} & written:
            continue
        groups = readers.get(node.call.name, [])
        fused = None
        if len(groups) == 1 and node.call.name not in needed:
            fused = _with_reader(program, matmul, node.call, groups[0], stored)
        if fused is None:
            found[node.number] = Fusable(node.call, None, matmul, node.number)
            continue
        before = found.get(fused.at)
        found[fused.at] = fused  # the last of several that one group reads
        if before is not None:
            alone = matmul_of(program, before.call)
            at = numbers[before.call.name]
            assert alone is not None
            found[at] = Fusable(before.call, None, alone, at)
    return list(found.values())


def written_by_effects(program: Program) -> set[str]:
    """The buffers that calls write to: when these are read must not change."""
    names: set[str] = set()
    for call in program.calls.values():
        if call.effect:
            names.update(call.needs)
    return names | {program.views[name].source for name in names if name in program.views}


def matmul_of(program: Program, call: Call) -> FusedMatmul | None:
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
    if not all(isinstance(n, int) for n in sizes) or 0 in (*a.shape, *b.shape):
        return None
    if layout.strides != contiguous_strides(layout.shape):
        return None
    loops = Var("pz", a.shape[0]), Var("pm", a.shape[1]), Var("pn", b.shape[2])
    value = _sum(program, operands, loops, layout.dtype)
    if value is None:
        return None
    where = index.linearize([index.of(v) for v in loops], [v.size for v in loops])
    name = re.sub(r"\W", "_", f"matmul_{call.name}")
    epilogue = _epilogue(name, loops, (Store(call.name, where, value),))
    k = a.shape[2]
    assert isinstance(k, int)
    return FusedMatmul(name, a, b, layout.dtype, *loops, k, epilogue, TileShape(64, 64, 32, 4, 3))


def _matrices(program: Program, node: object) -> BufferView | None:
    """Return the view of a matrix, or of a batch of them, with three dimensions."""
    place = view_of(program, node)
    if place is None or len(place.shape) not in (2, 3):
        return None
    if len(place.shape) == 3:
        return place
    return BufferView(place.source, place.offset, (1, *place.shape), (0, *place.strides))


def _epilogue(name: str, loops: Iterable[Var], stores: tuple[Store, ...]) -> Kernel:
    passes = (Pass((), (), stores),)
    return Kernel(name, params_of(passes), tuple(loops), (), None, passes)


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


def _with_reader(
    program: Program, matmul: FusedMatmul, call: Call, group: Group, stored: frozenset[str]
) -> Fusable | None:
    """The matmul with the group as its epilogue, or None where that cannot be."""
    if group.reduced is not None or any(d.failure is not None or d.updates is not None for d in group.members):
        return None
    kernels = split_ranges(build_kernel(f"after_{matmul.name}", program, group, stored, scratch=False), separate=False)
    if len(kernels) != 1 or why_not_epilogue(kernels[0]) is not None:
        return None
    (kernel,) = kernels
    epilogue = _moved(kernel, call.name, matmul)
    if epilogue is None:
        return None
    (store,) = matmul.epilogue.passes[0].stores
    given = [store] if call.name in program.outputs else []
    (own,) = epilogue.passes

    def rule(e: Expr) -> Expr | None:
        return store.value if isinstance(e, Load) and e.source == call.name else None

    stores = [Store(one.buffer, one.index, transform(one.value, rule)) for one in own.stores]
    whole = _epilogue(matmul.name, epilogue.outer, (*stores, *given))
    return Fusable(call, kernel, replace(matmul, epilogue=whole), group.number)


def why_not_epilogue(kernel: Kernel) -> str | None:
    """Why the kernel cannot follow a matmul point by point, or None."""
    if kernel.row or kernel.scratch or kernel.numbers or len(kernel.passes) != 1 or kernel.updates:
        return "it is not pointwise"
    (one,) = kernel.passes
    if one.before or one.reductions or one.checks:
        return "it is not pointwise"
    return None if all(isinstance(v.size, int) for v in kernel.outer) else "its sizes change"


def _moved(kernel: Kernel, name: str, matmul: FusedMatmul) -> Kernel | None:
    """The kernel over the loops of the matmul, where each of its points reads that one element of it, and all do."""
    read = {load for load in loads(*kernel.passes[0].values) if load.source == name}
    if len(read) != 1:
        return None
    (load,) = read
    where = positions(kernel.outer, load.index[0], matmul)
    if where is None or load.guard is not None:
        return None
    moved = rewrite_indices(kernel, lambda ix: index.substitute(ix, where))
    return replace(moved, outer=matmul.epilogue.outer)


def positions(loops: tuple[Var, ...], read: Ix, matmul: FusedMatmul) -> dict[Var, Ix] | None:
    """The loops' variables at each element of the matmul, which is read once for each of their values."""
    steps = [(index.coefficient(read, var), var) for var in loops]
    if read.const != 0 or any(not isinstance(step, int) for step, _ in steps):
        return None
    own = matmul.epilogue.outer
    flat = index.linearize([index.of(v) for v in own], [v.size for v in own])
    found: dict[Var, Ix] = {}
    expected = 1
    for step, var in sorted(steps, key=lambda pair: pair[0]):  # type: ignore[arg-type, return-value]
        if var.size == 1:
            found[var] = index.ZERO
        elif step != expected:
            return None
        else:
            assert isinstance(var.size, int)
            found[var] = index.mod(index.floordiv(flat, expected), var.size)
            expected *= var.size
    count = 1
    for var in own:
        assert isinstance(var.size, int)
        count *= var.size
    return found if expected == count else None


def parts_name(matmul: FusedMatmul) -> str:
    """The buffer that holds the sums of parts of a matmul's depth."""
    return f"{matmul.name}.parts"


def in_parts(matmul: FusedMatmul) -> tuple[Item, ...]:
    """The matmul as sums of parts of its depth, and a kernel that adds these up, in their order, and goes on."""
    loops, parts = matmul.epilogue.outer, matmul.tile.splits
    part = Var("pp", parts)
    where = index.linearize([index.of(v) for v in (part, *loops)], [v.size for v in (part, *loops)])
    count = 1
    for var in loops:
        assert isinstance(var.size, int)
        count *= var.size
    name = parts_name(matmul)
    sums = _epilogue(f"{matmul.name}_parts", (part, *loops), (Store(name, where, Ref(ACCUMULATOR, "f32")),))
    here = index.substitute(where, {part: index.ZERO})
    total: Expr = Load(name, (here,), "f32")
    for k in range(1, parts):
        total = total + Load(name, (index.add(here, index.const(k * count)),), "f32")

    def rule(e: Expr) -> Expr | None:
        return total if isinstance(e, Ref) and e.name == ACCUMULATOR else None

    own = matmul.epilogue.passes[0].stores
    stores = tuple(Store(one.buffer, one.index, transform(one.value, rule)) for one in own)
    finish = arrange(_epilogue(f"{matmul.name}_sum", loops, stores))
    return replace(matmul, name=f"{matmul.name}_parts", epilogue=sums, part=part), finish


def evenly(matmul: FusedMatmul) -> tuple[Item, ...]:
    """Return the left-over tiles as partial sums, split evenly along the depth, and all tiles with the epilogue."""
    name = parts_name(matmul)
    first = replace(matmul, name=f"{matmul.name}_rest", rest=Rest(name, known=False))
    return first, replace(matmul, rest=Rest(name, known=True))


def _mm(node: fx.Node) -> Operands | None:
    return Operands(*node.args[:2]) if len(node.args) == 2 and not node.kwargs else None


def _addmm(node: fx.Node) -> Operands | None:
    if len(node.args) != 3 or not set(node.kwargs) <= {"alpha", "beta"}:
        return None
    factor, share = node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)
    if type(factor) not in (int, float) or type(share) not in (int, float):
        return None
    if factor == 0:  # the matmul is not computed then: infinities in it do not count
        return None
    addend, a, b = node.args
    return Operands(a, b, addend, factor, share)  # type: ignore[arg-type]


#: Operators that are matmuls -> their operands.
OPERANDS: dict[object, Callable[[fx.Node], Operands | None]] = {
    aten.mm.default: _mm,
    aten.bmm.default: _mm,
    aten.addmm.default: _addmm,
    aten.baddbmm.default: _addmm,
}
