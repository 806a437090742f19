"""Attention in one kernel: Q·K matmul, pointwise work, softmax, P·V matmul.

Found by what is computed: a kernel that reads the first matmul at its own point alone, finds the largest of what it
computes of it in a row, the sum of exponentials below that, and stores their quotients, which the second matmul alone
reads. Sizes do not change, and the first matmul is of float32, or of low-precision types cast to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from framesmith_backends.ir.dtypes import LOW_PRECISION
from framesmith_backends.ir.expr import (
    Cast,
    Const,
    Expr,
    Load,
    Op,
    Ref,
    cost,
    guarded,
    loads,
    substitute,
    transform,
    variables,
    walk,
)
from framesmith_backends.ir.fused.attention import (
    FINITE_TOTAL,
    FULLY_MASKED,
    LARGEST,
    LOWEST,
    TOTAL,
    AttentionTile,
    FusedAttention,
    why_not_deep,
)
from framesmith_backends.ir.fused.attention_gradient import FusedAttentionGradient
from framesmith_backends.ir.fused.matmul import ACCUMULATOR, FusedMatmul
from framesmith_backends.ir.kernel import Accumulate, Kernel, Store
from framesmith_backends.ir.program import Def, Program, contiguous_strides
from framesmith_backends.ir.ranges import simplified
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix, Var
from framesmith_backends.reporting import Refusal, note
from framesmith_backends.schedule.fusion.group import CallNode, Group, Node
from framesmith_backends.schedule.fusion.inline import LARGEST_COST
from framesmith_backends.schedule.matmuls.grouped import Grouped, Uncast, is_plain, point_of, sizes_of


@dataclass(frozen=True, slots=True)
class Found:
    """Attention, or gradients of it: items by the numbers of their nodes, and the calls and groups they replace.

    `uncast` are operands that are kept as they were before they were cast, `unread` those that are read where they lie.
    Results of `late` nodes are there at those nodes that they are given here with. Of groups that compute something
    else too there is what is `left`, by their numbers.
    """

    items: Mapping[int, FusedAttention | FusedAttentionGradient]
    calls: frozenset[str]
    groups: frozenset[int]
    uncast: frozenset[str]
    unread: frozenset[str]
    late: Mapping[int, int] = field(default_factory=dict)
    left: Mapping[int, Group] = field(default_factory=dict)

    @property
    def buffers(self) -> set[str]:
        return {param.name for item in self.items.values() for param in item.params}

    @property
    def factors(self) -> set[str]:
        return {kind for item in self.items.values() for _, kind in item.operands}


def attentions(grouped: Grouped, on_gpu: bool) -> list[Found]:
    """The attention among the nodes."""
    found = []
    for name, node in grouped.calls.items():
        one = _attention(grouped, node, on_gpu)
        if isinstance(one, Found) and not grouped.written.isdisjoint(one.buffers):
            one = Refusal("a call writes to what it reads")
        if isinstance(one, Found):
            found.append(one)
        elif one is not None:
            note("fused attention", name, one)
    return found


def with_operands(program: Program, nodes: Sequence[Node], found: Sequence[Found]) -> tuple[Program, list[Node]]:
    """Return the program with operands as attention reads them, without the definitions and calls it replaces."""
    defs, layouts = dict(program.defs), dict(program.layouts)
    names = {name for one in found for name in one.uncast}
    unread = {name for one in found for name in one.unread}
    for name in names:
        d = defs[name]
        assert isinstance(d.body, Cast)
        layouts[name] = replace(layouts[name], dtype=d.body.value.dtype)
        defs[name] = replace(d, body=d.body.value, layout=layouts[name])
    left = {number: node for one in found for number, node in one.left.items()}
    gone = {number for one in found for number in one.groups} - {*left}
    kept: list[Node] = []
    for node in (left.get(node.number, node) for node in nodes if node.number not in gone):
        if isinstance(node, Group):
            node = replace(node, members=[defs[d.name] for d in node.members if d.name not in unread])
        if not isinstance(node, Group) or node.members:
            kept.append(node)
    return replace(program, defs=defs, layouts=layouts), kept


def _attention(grouped: Grouped, node: CallNode, on_gpu: bool) -> Found | Refusal | None:
    """Return the attention whose matmul with the values is this call; None for a matmul of no reduced rows."""
    pv_matmul, calls = grouped.matmul(node, not on_gpu), grouped.calls
    group = grouped.makers.get(pv_matmul.a.source) if pv_matmul is not None else None
    if pv_matmul is None or group is None or group.reduced is None:
        return None
    probabilities = pv_matmul.a.source
    if grouped.readers[probabilities] != [node.number]:
        return Refusal("the probabilities have other readers")
    if probabilities not in grouped.stored or group.has_effects:
        return Refusal("checks or scattered writes among the probabilities")
    kernel, others = _without_others(with_equal_reductions_once(grouped.kernel("softmax", group)), probabilities, calls)
    softmax = None if on_gpu and kernel.numbers else _softmax(kernel)
    if softmax is None:
        return Refusal("its first operand is no softmax along rows, in float32")
    scores, zero_masked_rows, names = softmax
    first = {load.source for load in loads(scores) if load.source in calls}
    if len(first) != 1:
        return Refusal(f"the scores read {len(first)} results of calls instead of one matmul's")
    made = calls[first.pop()]
    if grouped.readers[made.call.name] != [group.number]:
        return Refusal("the matmul of queries and keys has other readers")
    matmul = grouped.matmul(made, not on_gpu)
    if matmul is None or matmul.dtype != "f32":
        return Refusal("the scores are of no matmul in float32 with fixed sizes")
    if not _fit(matmul, pv_matmul):
        return Refusal("the rows of both matmuls differ, or the second one is scaled or added to")
    moved = _moved(kernel, scores, made.call.name, matmul, names)
    if moved is None:
        return Refusal("the scores read the matmul at several points, or rows keep more than single numbers")
    scores, kept = moved
    scores, recomputed = _recomputed(grouped, group, scores, matmul)
    uncast, kind, queries, keys = Uncast(grouped, (made.number,)), "f32", matmul.a, matmul.b
    low = uncast.kind(queries.source)
    if low is not None and low == uncast.kind(keys.source):
        (queries, kind), (keys, _) = uncast.view(queries), uncast.view(keys)
    depth = pv_matmul.columns.size
    if not isinstance(depth, int) or not isinstance(queries.shape[2], int):
        return Refusal("heads of unknown length")
    if why := why_not_deep(max(matmul.depth, depth), kind, on_gpu):
        return Refusal(why)
    item = FusedAttention(
        f"attention_{pv_matmul.name}", queries, keys, pv_matmul.b, kind, pv_matmul.dtype, matmul.batch,
        matmul.rows, matmul.columns, scores, zero_masked_rows, node.call.name,
        tile_for(matmul.depth, depth, kind), kept,
    )  # fmt: skip
    made_here, left = frozenset((made.call.name, node.call.name)), _left(group, others)
    unmade, unread = frozenset(uncast.names - uncast.unread), frozenset(uncast.unread) | recomputed
    return Found({node.number: item}, made_here, frozenset((group.number,)), unmade, unread, left=left)


def tile_for(depth: int, values: int, factors: str) -> AttentionTile:
    """Return the tile, by the registers and shared memory that rows of these lengths take."""
    longest = max(depth, values)
    if factors != "f32":
        return AttentionTile(128, 64, 8, 3) if longest <= 128 else AttentionTile(64, 32, 4, 2)
    return AttentionTile(64, 32, 4, 2) if longest <= 64 else AttentionTile(32, 32, 4, 2)


def _fit(matmul: FusedMatmul, pv_matmul: FusedMatmul) -> bool:
    """Whether the second matmul's rows are those of the first one, and nothing else is in it."""
    shape, rows = sizes_of(matmul), pv_matmul.a
    is_whole = (rows.shape, rows.strides, rows.offset) == (shape, contiguous_strides(shape), 0)
    return is_whole and is_plain(pv_matmul)


def _without_others(kernel: Kernel, probabilities: str, calls: Mapping[str, CallNode]) -> tuple[Kernel, set[str]]:
    """Return the kernel without stores of values free of matmuls and reductions, and the names of these."""

    def is_separate(store: Store) -> bool:
        parts = walk(store.value)
        used = any(isinstance(one, Ref) or (isinstance(one, Load) and one.source in calls) for one in parts)
        return store.buffer != probabilities and not used

    others = {store.buffer for one in kernel.passes for store in one.stores if is_separate(store)}
    stores = (tuple(store for store in one.stores if store.buffer not in others) for one in kernel.passes)
    passes = (replace(one, stores=some) for one, some in zip(kernel.passes, stores, strict=True))
    return replace(kernel, passes=tuple(passes)), others


def _left(group: Group, names: set[str]) -> dict[int, Group]:
    """By its number the group with these members alone, and those that they are computed of, if there are any."""
    needed, members = {*names}, []
    for d in reversed(group.members):
        if d.name in needed:
            members.append(d)
            needed.update(load.source for load in loads(d.body))
    return {group.number: replace(group, members=members[::-1], reduced=None)} if names else {}


def with_equal_reductions_once(kernel: Kernel) -> Kernel:
    """The kernel with reductions of the same values made once."""
    names: dict[str, str] = {}
    known: dict[tuple[str, Expr], str] = {}

    def rule(e: Expr) -> Expr | None:
        return Ref(names[e.name], e.dtype) if isinstance(e, Ref) and names.get(e.name, e.name) != e.name else None

    def changed(e: Expr) -> Expr:
        return transform(e, rule)

    passes = []
    for one in kernel.passes:
        made = one.rewritten(changed, lambda store: Store(store.buffer, store.index, changed(store.value)))
        for sums in made.reductions:
            names[sums.name] = known.setdefault((sums.kind, sums.value), sums.name)
        passes.append(replace(made, reductions=tuple(r for r in made.reductions if names[r.name] == r.name)))
    return replace(kernel, passes=tuple(passes))


def _softmax(kernel: Kernel) -> tuple[Expr, bool, dict[str, str]] | None:
    """Return the scores whose softmax along rows the kernel computes, in float32, and whether rows of -inf are zeros.

    Third, the roles of its reductions by name.
    """
    if len(kernel.passes) != 3 or kernel.scratch or kernel.down or len(kernel.row) != 1:
        return None
    tops, sums, last = kernel.passes
    plain = all(not (one.checks or one.scans or one.columns) for one in kernel.passes)
    if not plain or any((*tops.stores, *tops.before, *sums.stores, *last.reductions)):
        return None
    largest = [one for one in tops.reductions if one.kind == "max" and one.value.dtype == "f32"]
    if len(largest) != 1 or len(last.stores) != 1:
        return None
    (top,) = largest
    below = Ref(top.name, "f32")
    power, finite = (Op("exp", top.value - base) for base in (below, _unless_infinite(below)))
    totals = {one.value: one for one in sums.reductions if one.kind == "sum" and one.value in (power, finite)}
    if power not in totals or len(totals) != len(sums.reductions):
        return None
    total = totals[power]
    names = {top.name: LARGEST, total.name: TOTAL}
    if finite in totals:
        names[totals[finite].name] = FINITE_TOTAL
    fully_masked = [one for one in tops.reductions if one is not top]
    value = _without_cast(last.stores[0])
    share = power / Ref(total.name, "f32")
    if not fully_masked:
        return (top.value, False, names) if value == share else None
    hidden = _hides(fully_masked, top.value)
    if hidden is None or value != Op("where", Ref(hidden.name, "b1"), Const(0, "f32"), share):
        return None
    return top.value, True, {**names, hidden.name: FULLY_MASKED}


def _unless_infinite(e: Expr) -> Expr:
    """Return the number, or 0 where it is infinite, which logsumexp subtracts from each score."""
    return Op("where", Op("eq", Op("abs", e), Const(float("inf"), "f32")), Const(0, "f32"), e)


def _without_cast(store: Store) -> Expr:
    return store.value.value if isinstance(store.value, Cast) and store.value.dtype in LOW_PRECISION else store.value


def _hides(fully_masked: Sequence[Accumulate], scores: Expr) -> Accumulate | None:
    """Return the reduction for whether all of a row is -inf, if it is the only one."""
    (one, *rest) = fully_masked
    is_it = one.kind == "all" and one.value == Op("eq", scores, Const(LOWEST, "f32"))
    return one if is_it and not rest else None


def _recomputed(grouped: Grouped, group: Group, scores: Expr, matmul: FusedMatmul) -> tuple[Expr, frozenset[str]]:
    """The scores with definitions that they alone read, another element for each row and column, computed in place.

    Such a definition is as large as the scores of a head. Second, the names of those that nothing reads then.
    """
    gone, program = set[str](), grouped.program

    def flattened(e: Expr) -> Expr | None:
        if not isinstance(e, Load):
            return None
        return Load(
            e.source, (index.total(zip(e.index, program.layouts[e.source].steps, strict=True)),), e.dtype, e.guard
        )

    def rule(e: Expr) -> Expr | None:
        if not isinstance(e, Load) or not {matmul.rows, matmul.columns} <= index.variables(e.index[0]):
            return None
        d = program.defs.get(e.source)
        if d is None or not _is_recomputable(grouped, group, d):
            return None
        gone.add(d.name)
        where = zip(d.axes, index.delinearize(e.index[0], d.layout.shape), strict=True)
        body = transform(substitute(d.body, {axis: ix for axis, ix in where if axis is not None}), flattened)
        return transform(guarded(body, e.guard), rule)

    return simplified(transform(scores, rule)), frozenset(gone)


def _is_recomputable(grouped: Grouped, group: Group, d: Def) -> bool:
    """Whether the definition is pointwise, of moderate cost, and stored for this group alone."""
    if any(one is not None for one in (d.reduction, d.scan, d.failure, d.updates, d.buffer)):
        return False
    is_dense = d.layout.strides == contiguous_strides(d.layout.shape)
    in_memory = grouped.program.kept | grouped.program.alone
    return (
        is_dense
        and d.name not in in_memory
        and grouped.readers[d.name] == [group.number]
        and cost(d.body) <= LARGEST_COST
    )


def by_rows(where: Mapping[Var, Ix], along: Var, matmul: FusedMatmul) -> dict[Var, Ix]:
    """The same positions, of which but that along a row is the same for all of it: in fewer variables."""
    first = {matmul.columns: index.ZERO}
    return {var: ix if var is along else index.substitute(ix, first) for var, ix in where.items()}


def _moved(
    kernel: Kernel, scores: Expr, name: str, matmul: FusedMatmul, names: Mapping[str, str]
) -> tuple[Expr, tuple[Store, ...]] | None:
    """The scores over the loops of the matmul, of which each point reads that one element, and all do.

    With them what is kept of each row besides, of reductions by the `names` that these have.
    """
    read = {load for load in loads(scores) if load.source == name}
    if len(read) != 1:
        return None
    (load,) = read
    where = point_of((*kernel.outer, *kernel.row), load.index[0], matmul)
    if where is None or load.guard is not None:
        return None
    (along,) = kernel.row
    last = kernel.passes[-1]
    (store,) = last.stores
    if store.index != load.index[0] or where[along] != index.of(matmul.columns):
        return None
    where = by_rows(where, along, matmul)

    def rule(e: Expr) -> Expr | None:
        if isinstance(e, Ref):
            return Ref(names.get(e.name, e.name), e.dtype)
        return Ref(ACCUMULATOR, "f32") if e == load else None

    kept = []
    for one in (*kernel.passes[1].before, *last.before):
        value, place = substitute(transform(one.value, rule), where), index.substitute(one.index, where)
        if value.dtype != "f32" or not (variables(value) | index.variables(place)) <= {matmul.batch, matmul.rows}:
            return None
        kept.append(Store(one.buffer, place, value))
    return substitute(transform(scores, rule), where), tuple(kept)
