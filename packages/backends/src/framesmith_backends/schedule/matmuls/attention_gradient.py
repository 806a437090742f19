"""Gradients of attention on a GPU in two kernels: matmuls, pointwise work, matmuls of that.

Found by what is computed: a pointwise kernel that alone reads one or two matmuls, at its own point, and stores what
only matmuls read, of its rows or of its columns, powers of e among it. What it computes is in the loops of both
kernels then, and of the size of the scores nothing is stored. `rewrite/attention_gradient.py` has training steps
computed like that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from framesmith_backends.ir.expr import Cast, Expr, Load, Op, Ref, loads, substitute, transform, walk
from framesmith_backends.ir.fused.attention import AttentionTile, why_not_deep
from framesmith_backends.ir.fused.attention_gradient import FusedAttentionGradient, SideMatmul, SideSum
from framesmith_backends.ir.fused.matmul import FusedMatmul
from framesmith_backends.ir.kernel import Kernel, Store
from framesmith_backends.ir.program import BufferView, contiguous_strides
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.size import Size
from framesmith_backends.schedule.fusion.group import CallNode, Group, Node
from framesmith_backends.schedule.matmuls.attention import Found, by_rows
from framesmith_backends.schedule.matmuls.grouped import Grouped, Uncast, is_plain, point_of, sizes_of

ROWS, COLUMNS = "rows", "columns"

#: The most elements of rows -> the position of their tile in each row of TILES.
LENGTHS = (64, 128, 256)
#: The dtype of the factors, and the side -> tiles in which nothing spills.
TILES = {
    ("bf16", ROWS): ((128, 64, 8, 2), (64, 64, 8, 2), (64, 32, 8, 1)),
    ("bf16", COLUMNS): ((128, 32, 8, 2), (64, 64, 8, 2), (32, 32, 8, 1)),
    # Gradients of scores are multiplied in float32.
    ("f16", ROWS): ((128, 64, 8, 2), (64, 64, 8, 1), (32, 32, 8, 1)),
    ("f16", COLUMNS): ((128, 32, 8, 2), (64, 32, 8, 2), (32, 32, 8, 1)),
    ("f32", ROWS): ((64, 32, 8, 1), (32, 32, 8, 1)),
    ("f32", COLUMNS): ((64, 32, 8, 1), (32, 32, 4, 1)),
}


@dataclass(frozen=True, slots=True)
class Reader:
    """A matmul of `buffer`, which the kernel stores, by its rows or its columns, with another factor.

    The factor's dimensions are the matmul's number, what is summed over, and elements; the result's end with these.
    """

    node: CallNode
    buffer: str
    side: str
    factor: BufferView
    result: BufferView
    dtype: str


@dataclass(frozen=True, slots=True)
class MatmulPair:
    """The kernel of a group between matmuls: those that it reads, by their names, and those that read it."""

    group: Group
    matmuls: Mapping[str, tuple[CallNode, FusedMatmul]]
    readers: tuple[Reader, ...]
    values: Mapping[str, Expr]

    @property
    def calls(self) -> dict[str, int]:
        """The calls that are made in the kernels, and the numbers of their nodes."""
        nodes = [*(node for node, _ in self.matmuls.values()), *(one.node for one in self.readers)]
        return {node.call.name: node.number for node in nodes}


def attention_gradients(grouped: Grouped) -> list[Found]:
    """The gradients of attention among the nodes: two of these for each, or one."""
    found = []
    for group in grouped.groups if grouped.calls else ():
        between = _pointwise_between(grouped, group)
        one = None if between is None else _sides(grouped, between)
        if one is not None and grouped.written.isdisjoint(one.buffers):
            found.append(one)
    return found


def _pointwise_between(grouped: Grouped, group: Group) -> MatmulPair | None:
    calls = grouped.calls
    alone = [name for name in group.reads if name in calls and grouped.readers.get(name) == [group.number]]
    matmuls = {name: matmul for name in sorted(alone) if (matmul := grouped.matmul(calls[name])) is not None}
    if not matmuls or not all(map(is_plain, matmuls.values())):
        return None
    kernel = grouped.pointwise_kernel("between", group)
    moved = None if kernel is None else _moved(kernel, matmuls)
    if moved is None:
        return None
    taken, values = moved
    if not any(_has_probabilities(value) for value in values.values()):
        return None
    by_number = {node.number: node for node in calls.values()}
    found = []
    for name in values:
        for number in (one for one in grouped.readers.get(name, [-1]) if one != group.number):
            reader = None if number not in by_number else _reader(grouped, by_number[number], name, matmuls[min(taken)])
            if reader is None:
                return None
            found.append(reader)
    return MatmulPair(group, {name: (calls[name], matmuls[name]) for name in sorted(taken)}, tuple(found), values)


def _has_probabilities(value: Expr) -> bool:
    """Whether exponentials of a matmul are in it: two layers with something between them are no attention.

    These have other numbers of rows and columns, and would be as few programs as there are blocks of rows.
    """
    powers = [part for part in walk(value) if isinstance(part, Op) and part.name == "exp"]
    return any(_refs(power) for power in powers)


def _moved(kernel: Kernel, matmuls: Mapping[str, FusedMatmul]) -> tuple[set[str], dict[str, Expr]] | None:
    """Return the matmuls that are read at the kernel's own point, and the values stored there, over the loops of these.

    Matmuls are `Ref`s of their names in it. All have the sizes of the first one; others are read as tables are.
    """
    stores: tuple[Store, ...] = kernel.passes[0].stores
    indices = {store.index for store in stores}
    if len(indices) != 1:
        return None
    (place,) = indices
    read = loads(*(store.value for store in stores))
    taken: dict[str, FusedMatmul] = {}
    for load in read:
        if load.source in matmuls and load.index[0] == place and load.guard is None:
            taken[load.source] = matmuls[load.source]
    sizes = {sizes_of(matmul) for matmul in taken.values()}
    other = [one for one in read if one.source in taken and (one.index[0] != place or one.guard is not None)]
    if len(sizes) != 1 or len(taken) > 2 or other:
        return None
    first = taken[min(taken)]
    where = point_of(kernel.outer, place, first)
    if where is None:
        return None
    along = next((var for var, ix in where.items() if ix == index.of(first.columns)), None)
    where = where if along is None else by_rows(where, along, first)
    values = {}
    for store in stores:
        values[store.buffer] = substitute(transform(store.value, lambda e: _as_ref(e, taken)), where)
    return set(taken), values


def _as_ref(e: Expr, taken: Mapping[str, FusedMatmul]) -> Expr | None:
    """Return the matmul's element as float32, without rounding between two casts."""
    if isinstance(e, Load) and e.source in taken:
        ref = Ref(e.source, "f32")
        return ref if e.dtype == "f32" else Cast(ref, e.dtype)
    inner = e.value if isinstance(e, Cast) and e.dtype == "f32" else None
    if isinstance(inner, Cast) and isinstance(inner.value, Ref) and inner.value.name in taken:
        return inner.value
    return None


def _reader(grouped: Grouped, node: CallNode, name: str, first: FusedMatmul) -> Reader | None:
    """Return the call as a matmul of the kernel's result of that name, if it is one."""
    matmul = grouped.matmul(node)
    if matmul is None or not is_plain(matmul) or matmul.a.source == matmul.b.source:
        return None
    sizes = sizes_of(first)
    if 1 in sizes[1:]:
        return None
    is_left = matmul.a.source == name
    stored, other = (matmul.a, matmul.b) if is_left else (matmul.b, matmul.a)
    upright, is_transposed = _lies_in_rows(stored, sizes), _lies_in_rows(stored.transposed, sizes)
    if stored.offset != 0 or upright == is_transposed:
        return None
    result = BufferView(node.call.name, 0, sizes_of(matmul), contiguous_strides(sizes_of(matmul)))
    factor, result = (other, result) if is_left else (other.transposed, result.transposed)
    return Reader(node, name, ROWS if is_left == upright else COLUMNS, factor, result, matmul.dtype)


def _lies_in_rows(view: BufferView, shape: tuple[Size, ...]) -> bool:
    """Whether the view has these sizes and is contiguous; strides of single elements do not count."""
    steps = zip(shape, view.strides, contiguous_strides(shape), strict=True)
    return view.shape == shape and all(n == 1 or one == other for n, one, other in steps)


def _sides(grouped: Grouped, between: MatmulPair) -> Found | None:
    """The kernels of rows and of columns, each where the last of the matmuls is that it has."""
    uncast = Uncast(grouped, {*between.calls.values()})
    first = between.matmuls[min(between.matmuls)][1]
    items: dict[int, FusedAttentionGradient] = {}
    late: dict[int, int] = {}
    for side in (ROWS, COLUMNS):
        some = [one for one in between.readers if one.side == side]
        if not some:
            continue
        item = _item(uncast, between, first, side, some)
        if item is None:
            return None
        *others, last = sorted((one.node for one in some), key=lambda node: node.position)
        items[last.number] = item
        late |= {node.number: last.number for node in others}
    groups, unmade = frozenset((between.group.number,)), frozenset(uncast.names - uncast.unread)
    return Found(items, frozenset(between.calls), groups, unmade, frozenset(uncast.unread), late)


def _item(
    uncast: Uncast, between: MatmulPair, first: FusedMatmul, side: str, some: Sequence[Reader]
) -> FusedAttentionGradient | None:
    own, other = (first.rows, first.columns) if side == ROWS else (first.columns, first.rows)
    needed = {part.name for one in some for part in _refs(between.values[one.buffer])}
    matmuls = []
    for name, (_, matmul) in between.matmuls.items():
        if name not in needed:
            continue
        (a, kind), (b, other_kind) = uncast.view(matmul.a), uncast.view(matmul.b)
        if kind != other_kind:
            return None
        made = (a, b) if side == ROWS else (b.transposed, a.transposed)
        matmuls.append(SideMatmul(name, *made, kind))
    sums = []
    for one in some:
        factor, kind = uncast.view(one.factor)
        # A sum of float32 is not rounded to a type in which small gradients are 0; bfloat16 has the range of float32.
        rounded = "f32" if one.dtype == "f32" and kind == "f16" else kind
        value = between.values[one.buffer]
        if isinstance(value, Cast) and value.dtype == rounded:
            value = value.value
        value = value if value.dtype == "f32" else Cast(value, "f32")
        sums.append(SideSum(value, factor, kind, rounded, one.result, one.dtype))
    depths = [*(one.own.shape[2] for one in matmuls), *(one.factor.shape[2] for one in sums)]
    longest = max(depth for depth in depths if isinstance(depth, int))
    kinds = {one.dtype for one in matmuls} | {one.stored for one in sums}
    kind = next(kind for kind in ("f32", "f16", "bf16") if kind in kinds)
    if why_not_deep(longest, kind) is not None:
        return None
    name, tile = f"attention_gradient_{side}_{first.name}", gradient_tile(side, longest, kind)
    return FusedAttentionGradient(name, first.batch, own, other, tuple(matmuls), tuple(sums), tile, side == ROWS)


def _refs(value: Expr) -> list[Ref]:
    return [part for part in walk(value) if isinstance(part, Ref)]


def gradient_tile(side: str, longest: int, kind: str) -> AttentionTile:
    """The tile, by the longest rows that are multiplied, and the widest type of their elements."""
    return AttentionTile(*next(tile for most, tile in zip(LENGTHS, TILES[kind, side], strict=False) if longest <= most))


def moved_after(nodes: Sequence[Node], one: Found) -> list[Node] | None:
    """Return the nodes; those that read a kernel's share of an earlier node run after that kernel.

    None where one of these has effects, or where the kernel's node is not the last of its nodes any more.
    """
    order = [*nodes]
    for number, later in one.late.items():
        begin = next(at for at, node in enumerate(order) if node.number == number)
        end = next(at for at, node in enumerate(order) if node.number == later)
        if end < begin:
            return None
        between, last = order[begin + 1 : end], order[end]
        waiting = [node for node in between if node.before >> number & 1]
        if last.before >> number & 1 or any(map(_stays, waiting)):
            return None
        rest = [node for node in between if node not in waiting]
        order[begin + 1 : end + 1] = [*rest, last, *waiting]
    return order


def _stays(node: Node) -> bool:
    """Whether the node is ordered among those with effects or checks."""
    if isinstance(node, CallNode):
        return node.call.effect or node.call.may_fail
    return any(d.failure is not None for d in node.members)
