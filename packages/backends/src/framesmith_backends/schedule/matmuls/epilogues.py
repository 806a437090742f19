"""GEMM epilogue and prologue fusion: matmuls of a GPU that run as one kernel with the pointwise kernels around them.

A matmul has one such reader if a group reads it at its own point, nothing else reads it but the graph's
outputs, and the group reduces nothing. A matmul that no such group reads may be a kernel by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from framesmith_backends.ir.expr import Expr, Load, Ref, loads, substitute, transform
from framesmith_backends.ir.fused.matmul import ACCUMULATOR, FusedMatmul, Rest, TileShape
from framesmith_backends.ir.kernel import Kernel, Store
from framesmith_backends.ir.matmul import Item
from framesmith_backends.ir.program import Call, Layout, Program, contiguous_strides
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.ir.symbolic.size import numel
from framesmith_backends.schedule.fusion.domains import flat_index
from framesmith_backends.schedule.fusion.group import Group
from framesmith_backends.schedule.kernels.loops import arrange, moved
from framesmith_backends.schedule.matmuls.grouped import Grouped, point_at, point_of, pointwise, sizes_of


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
        split = (tile.splits, *sizes_of(self.matmul))
        shape = (tile.evenly, 2, tile.rows, tile.columns) if tile.evenly else split
        return {parts_name(self.matmul): Layout(shape, contiguous_strides(shape), "f32", device)}


#: For each matmul that is to run in another form than the present one: its tile.
ChooseTiles = Callable[[Sequence[Fusable], Program], Mapping[str, TileShape]]


def fusable_matmuls(grouped: Grouped, needed: Collection[str]) -> list[Fusable]:
    """The matmuls among the nodes that may run otherwise; those in `needed` are read by calls."""
    readers: dict[str, list[Group]] = {}
    for group in grouped.groups:
        for name in group.reads:
            readers.setdefault(name, []).append(group)
    bindings = {binding.source for binding in grouped.program.bindings.values()}
    found: list[tuple[Fusable, Fusable | None]] = []
    for name, node in grouped.calls.items():
        matmul = None if name in bindings else grouped.matmul(node)
        if matmul is None or {matmul.a.source, matmul.b.source, name} & grouped.written:
            continue
        alone, groups = Fusable(node.call, None, matmul, node.number), readers.get(name, [])
        is_read_once = len(groups) == 1 and name not in needed
        found.append((alone, _with_reader(grouped, alone, groups[0]) if is_read_once else None))
    last = {fused.at: fused for _, fused in found if fused is not None}  # of several that one group reads
    return [alone if fused is None or last[fused.at] is not fused else fused for alone, fused in found]


def _with_reader(grouped: Grouped, alone: Fusable, group: Group) -> Fusable | None:
    """The matmul with the group as its epilogue, or None where that cannot be."""
    matmul, name = alone.matmul, alone.call.name
    kernel = grouped.pointwise_kernel(f"after_{matmul.name}", group)
    epilogue = None if kernel is None else _moved(kernel, name, matmul)
    if epilogue is None:
        return None
    (store,) = matmul.epilogue.passes[0].stores
    given = [store] if name in grouped.program.outputs else []

    def rule(e: Expr) -> Expr | None:
        return store.value if isinstance(e, Load) and e.source == name else None

    stores = [Store(one.buffer, one.index, transform(one.value, rule)) for one in epilogue.stores]
    whole = pointwise(matmul.name, epilogue.outer, (*stores, *given))
    return Fusable(alone.call, kernel, replace(matmul, epilogue=whole), group.number)


def _moved(kernel: Kernel, name: str, matmul: FusedMatmul) -> Kernel | None:
    """The kernel over the loops of the matmul, where each of its points reads that one element of it, and all do."""
    read = {load for load in loads(*kernel.passes[0].values) if load.source == name}
    if len(read) != 1:
        return None
    (load,) = read
    where = point_of(kernel.outer, load.index[0], matmul)
    if where is None or load.guard is not None:
        return None
    return replace(moved(kernel, where), outer=matmul.epilogue.outer)


def with_prologues(grouped: Grouped, found: Sequence[Fusable], read: Collection[str]) -> list[Fusable]:
    """Return the matmuls, each with its possible prologues; `read` are buffers that others than nodes read.

    A prologue is a pointwise kernel that writes nothing but an operand of one matmul, which is no result of the graph.
    A kernel that is the reader of another matmul stays that: there each element is computed once.
    """
    after = {one.at for one in found if one.kernel is not None}
    return [
        replace(one, prologues=(_prologue(grouped, one, "a", after, read), _prologue(grouped, one, "b", after, read)))
        for one in found
    ]


def _prologue(
    grouped: Grouped, one: Fusable, which: str, after: Collection[int], read: Collection[str]
) -> Prologue | None:
    """Return the prologue of that operand, if any: no group of those numbered `after`, the readers of matmuls."""
    matmul, batch = one.matmul, one.matmul.batch
    place, loops = (
        (matmul.a, (batch, matmul.rows, matmul.along))
        if which == "a"
        else (matmul.b, (batch, matmul.along, matmul.columns))
    )
    name = place.source
    group = grouped.makers.get(name)
    if group is None or group.number in after or name in read:
        return None
    if {*grouped.readers.get(name, ())} != {grouped.calls[one.call.name].number}:
        return None
    if any(param.name == name for param in matmul.epilogue.params):
        return None  # it is added to the matmul, too
    if [d.name for d in group.members if d.name in grouped.stored] != [name]:
        return None
    kernel = grouped.pointwise_kernel(f"before_{matmul.name}_{which}", group)
    if kernel is None or not grouped.written.isdisjoint(param.name for param in kernel.params):
        return None
    (store,) = kernel.passes[0].stores
    offset = index.total(zip(map(index.of, loops), place.strides, strict=True), place.offset)
    where = point_at(kernel.outer, store.index, offset)
    return None if where is None else Prologue(kernel, substitute(store.value, where), group.number)


def parts_name(matmul: FusedMatmul) -> str:
    """The buffer that holds the sums of parts of a matmul's depth."""
    return f"{matmul.name}.parts"


def in_parts(matmul: FusedMatmul) -> tuple[Item, ...]:
    """The matmul as sums of parts of its depth, and a kernel that adds these up, in their order, and goes on."""
    loops, parts = matmul.epilogue.outer, matmul.tile.splits
    part = Var("pp", parts)
    where, count = flat_index((part, *loops)), numel(v.size for v in loops)
    name = parts_name(matmul)
    sums = pointwise(f"{matmul.name}_parts", (part, *loops), (Store(name, where, Ref(ACCUMULATOR, "f32")),))
    here = index.substitute(where, {part: index.ZERO})
    total: Expr = Load(name, (here,), "f32")
    for k in range(1, parts):
        total = total + Load(name, (index.add(here, index.const(k * count)),), "f32")

    def rule(e: Expr) -> Expr | None:
        return total if isinstance(e, Ref) and e.name == ACCUMULATOR else None

    own = matmul.epilogue.passes[0].stores
    stores = tuple(Store(one.buffer, one.index, transform(one.value, rule)) for one in own)
    finish = arrange(pointwise(f"{matmul.name}_sum", loops, stores))
    return replace(matmul, name=f"{matmul.name}_parts", epilogue=sums, part=part), finish


def evenly(matmul: FusedMatmul) -> tuple[Item, ...]:
    """Return the left-over tiles as partial sums, split evenly along the depth, and all tiles with the epilogue."""
    name = parts_name(matmul)
    first = replace(matmul, name=f"{matmul.name}_rest", rest=Rest(name, known=False))
    return first, replace(matmul, rest=Rest(name, known=True))
