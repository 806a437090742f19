"""Attention of a GPU in one kernel: a product, softmax of what is computed of it, a product of that.

Found by what is computed: a kernel that reads the first product at its own point alone, finds the largest of what it
computes of it in a row, the sum of exponentials below that, and stores their quotients, which the second product alone
reads. Sizes do not change, and the first product is of float32, or of half types cast to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from framesmith_backends.ir import index
from framesmith_backends.ir.expr import Cast, Const, Expr, Load, Op, Ref, loads, substitute, transform
from framesmith_backends.ir.fused_attention import LOWEST, AttentionTile, FusedAttention
from framesmith_backends.ir.fused_product import ACCUMULATOR, FusedProduct
from framesmith_backends.ir.kernel import Accumulate, Kernel, Store
from framesmith_backends.ir.program import Program, contiguous_strides
from framesmith_backends.schedule.build import build_kernel
from framesmith_backends.schedule.fused_products import positions, product_of, written_by_effects
from framesmith_backends.schedule.group import CallNode, Group, Node

#: More elements of a head do not fit into a program's registers; of float32.
MOST_DEPTH, MOST_FLOATS = 256, 128
HALF = ("f16", "bf16")

#: Whether attention whose queries and keys are of a type is to be one kernel on a device.
Attends = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class Found:
    """Attention that runs at the node numbered `at`, and the calls and groups that it makes.

    `halves` are operands that are kept as they were before they were cast, `unread` those that are read where they lie.
    """

    item: FusedAttention
    at: int
    calls: frozenset[str]
    groups: frozenset[int]
    halves: frozenset[str]
    unread: frozenset[str]


def attentions(program: Program, nodes: Sequence[Node], stored: frozenset[str]) -> list[Found]:
    """The attention among the nodes."""
    if not any(isinstance(node, CallNode) for node in nodes):
        return []
    readers = _readers(program, nodes)
    written = written_by_effects(program)
    makers = {one.name: node for node in nodes if isinstance(node, Group) for one in node.members}
    calls = {node.call.name: node for node in nodes if isinstance(node, CallNode)}
    found = []
    for node in calls.values():
        one = _attention(program, node, readers, makers, calls, stored)
        if one is not None and written.isdisjoint(param.name for param in one.item.params):
            found.append(one)
    return found


def with_operands(program: Program, nodes: Sequence[Node], found: Sequence[Found]) -> tuple[Program, list[Node]]:
    """The program with its operands as attention reads them, and without what that makes itself."""
    defs, layouts = dict(program.defs), dict(program.layouts)
    names = {name for one in found for name in one.halves}
    unread = {name for one in found for name in one.unread}
    for name in names:
        d = defs[name]
        assert isinstance(d.body, Cast)
        layouts[name] = replace(layouts[name], dtype=d.body.value.dtype)
        defs[name] = replace(d, body=d.body.value, layout=layouts[name])
    kept: list[Node] = []
    for node in nodes:
        if not isinstance(node, Group) or {d.name for d in node.members}.isdisjoint(names | unread):
            kept.append(node)
            continue
        members = [defs[d.name] if d.name in names else d for d in node.members if d.name not in unread]
        if members:
            kept.append(replace(node, members=members))
    gone = {number for one in found for number in one.groups}
    kept = [node for node in kept if node.number not in gone]
    return replace(program, defs=defs, layouts=layouts), kept


def _readers(program: Program, nodes: Sequence[Node]) -> Mapping[str, list[int]]:
    """For each buffer the numbers of the nodes that read it, through views as well; -1 for whoever gets results."""
    found: dict[str, list[int]] = {}

    def read(name: str, number: int) -> None:
        place = program.places.get(name)
        found.setdefault(name if place is None else place.source, []).append(number)

    for node in nodes:
        if isinstance(node, Group):
            for name in {load.source for one in node.members for load in loads(one.body)}:
                read(name, node.number)
        elif node.call.name not in program.places:
            for name in node.call.needs:
                read(name, node.number)
    for output in program.outputs:
        if isinstance(output, str):
            read(output, -1)
    return found


def _attention(
    program: Program,
    node: CallNode,
    readers: Mapping[str, list[int]],
    makers: Mapping[str, Group],
    calls: Mapping[str, CallNode],
    stored: frozenset[str],
) -> Found | None:
    means = None if node.call.effect else product_of(program, node.call)
    group = makers.get(means.a.source) if means is not None else None
    if means is None or group is None or group.reduced is None or readers[means.a.source] != [node.number]:
        return None
    written = [one.name for one in group.members if one.name in stored]
    if written != [means.a.source] or any(d.failure is not None or d.updates is not None for d in group.members):
        return None
    kernel = build_kernel("softmax", program, group, stored, scratch=False)
    softmax = _softmax(kernel)
    if softmax is None:
        return None
    scores, blind_rows = softmax
    first = [load.source for load in loads(scores) if load.source in calls]
    if len(set(first)) != 1 or readers[first[0]] != [group.number]:
        return None
    made = calls[first[0]]
    product = None if made.call.effect else product_of(program, made.call)
    if product is None or product.dtype != "f32" or not _fit(product, means):
        return None
    moved = _moved(kernel, scores, made.call.name, product)
    if moved is None:
        return None
    halves = [_half(program, place.source, readers, made.number) for place in (product.a, product.b)]
    kind = halves[0] if halves[0] == halves[1] else None
    if max(product.depth, _depth(means)) > (MOST_FLOATS if kind is None else MOST_DEPTH):
        return None
    operands = [product.a, product.b]
    lying = [None if kind is None else _lying(program, place.source, stored) for place in operands]
    queries, keys = (
        place if source is None else replace(place, source=source)
        for place, source in zip(operands, lying, strict=True)
    )
    item = FusedAttention(
        f"attention_{means.name}", queries, keys, means.b, kind or "f32", means.dtype, product.batch,
        product.rows, product.columns, moved, blind_rows, node.call.name, tile_for(product.depth, _depth(means), kind),
    )  # fmt: skip
    names = {place.source for place in operands} if kind is not None else set()
    unread = {place.source for place, source in zip(operands, lying, strict=True) if source is not None}
    made_here = frozenset((made.call.name, node.call.name))
    return Found(item, node.number, made_here, frozenset((group.number,)), frozenset(names - unread), frozenset(unread))


def _depth(means: FusedProduct) -> int:
    size = means.columns.size
    assert isinstance(size, int)
    return size


def tile_for(depth: int, values: int, half: str | None) -> AttentionTile:
    """The tile, by how much of registers and shared memory rows of these lengths take."""
    longest = max(depth, values)
    if half is not None:
        return AttentionTile(128, 64, 8, 3) if longest <= 128 else AttentionTile(64, 32, 4, 2)
    return AttentionTile(64, 32, 4, 2) if longest <= 64 else AttentionTile(32, 32, 4, 2)


def _fit(product: FusedProduct, means: FusedProduct) -> bool:
    """Whether the second product's rows are those of the first one, and nothing else is in it."""
    shape = (product.batch.size, product.rows.size, product.columns.size)
    if means.a.shape != shape or means.a.strides != contiguous_strides(shape) or means.a.offset != 0:
        return False
    return _is_plain(means)


def _is_plain(means: FusedProduct) -> bool:
    """Whether nothing is added to the product, nor is it scaled."""
    (store,) = means.epilogue.passes[0].stores
    value = store.value.value if isinstance(store.value, Cast) else store.value
    return value == Ref(ACCUMULATOR, "f32")


def _half(program: Program, name: str, readers: Mapping[str, list[int]], only: int) -> str | None:
    """The half type that a definition casts to float32, for that reader alone; None of others."""
    d = program.defs.get(name)
    if d is None or readers.get(name) != [only] or d.reduction is not None or d.updates is not None:
        return None
    body = d.body
    cast = isinstance(body, Cast) and body.dtype == "f32" and body.value.dtype in HALF
    return body.value.dtype if cast and isinstance(body, Cast) else None


def _lying(program: Program, name: str, stored: frozenset[str]) -> str | None:
    """The buffer whose elements the definition casts, if it lies in memory as they do."""
    d = program.defs[name]
    load = d.body.value if isinstance(d.body, Cast) else None
    if not isinstance(load, Load) or load.guard is not None or load.source not in program.layouts:
        return None
    layout = program.layouts[load.source]
    here = tuple(index.ZERO if axis is None else index.of(axis) for axis in d.axes)
    alike = (layout.shape, layout.strides) == (d.layout.shape, d.layout.strides) and load.index == here
    return load.source if alike and (load.source not in program.defs or load.source in stored) else None


def _softmax(kernel: Kernel) -> tuple[Expr, bool] | None:
    """What the kernel computes softmax of along its rows, in float32, and whether rows of -inf are zeros."""
    if len(kernel.passes) != 3 or kernel.scratch or kernel.down or kernel.numbers or len(kernel.row) != 1:
        return None
    tops, sums, last = kernel.passes
    plain = all(not (one.before or one.checks or one.scans or one.columns) for one in kernel.passes)
    if not plain or tops.stores or sums.stores or last.reductions or len(last.stores) != 1 or len(sums.reductions) != 1:
        return None
    largest = [one for one in tops.reductions if one.kind == "max" and one.value.dtype == "f32"]
    if len(largest) != 1:
        return None
    (top,) = largest
    power = Op("exp", top.value - Ref(top.name, "f32"))
    (total,) = sums.reductions
    if total.kind != "sum" or total.value != power:
        return None
    blind = [one for one in tops.reductions if one is not top]
    value = _without_cast(last.stores[0])
    share = power / Ref(total.name, "f32")
    if not blind:
        return (top.value, False) if value == share else None
    hidden = _hides(blind, top.value)
    if hidden is None or value != Op("where", Ref(hidden.name, "b1"), Const(0, "f32"), share):
        return None
    return top.value, True


def _without_cast(store: Store) -> Expr:
    """What is stored before it is rounded."""
    return store.value.value if isinstance(store.value, Cast) and store.value.dtype in HALF else store.value


def _hides(blind: Sequence[Accumulate], scores: Expr) -> Accumulate | None:
    """The reduction that tells of a row whether all of it is -inf, if it is the only one."""
    (one, *rest) = blind
    is_it = one.kind == "all" and one.value == Op("eq", scores, Const(LOWEST, "f32"))
    return one if is_it and not rest else None


def _moved(kernel: Kernel, scores: Expr, name: str, product: FusedProduct) -> Expr | None:
    """The scores over the loops of the product, of which each point reads that one element, and all do."""
    read = {load for load in loads(scores) if load.source == name}
    if len(read) != 1:
        return None
    (load,) = read
    where = positions((*kernel.outer, *kernel.row), load.index[0], product)
    if where is None or load.guard is not None:
        return None
    (along,) = kernel.row
    (store,) = kernel.passes[-1].stores
    if store.index != load.index[0] or where[along] != index.of(product.columns):
        return None

    def rule(e: Expr) -> Expr | None:
        return Ref(ACCUMULATOR, "f32") if e == load else None

    return substitute(transform(scores, rule), where)
