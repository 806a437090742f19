"""The memory budget: what the backward pass recomputes beyond the minimum cut, to save less.

Note [Budget]: the forward pass is divided into segments where few bytes are alive. Each segment can be recomputed as a
checkpoint is (see Note [Recomputation]): a copy of it runs where its backward pass begins, from what is alive at its
start, so that no two are in memory at once. Those that free the most bytes for their work come first, until what is
saved is within the budget. The order does not depend on the budget: a smaller one recomputes what a larger one does,
and more.

Results stay what they are. What the policy of a checkpoint may do, reading memory that the user holds and
eager mode does not save, a segment may not: a copy is saved (see Note [Partition]).
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith_aot.partition.checkpoints import is_redrawable, is_repeated
from framesmith_aot.trace.joint import JointGraph
from framesmith_aten.graphs.nodes import is_pure, tensor_bytes, view_root
from framesmith_aten.graphs.numbers import is_number_node
from framesmith_aten.meta import CHECKPOINT_PATH, SAVED_IN
from framesmith_aten.operators import flop_count
from framesmith_aten.symbolic import hint_or_guess

#: A segment ends where its saved bytes are this many times those that are alive.
LEAST_GAIN = 3

#: Floating-point operations in the time in which a byte is read or written.
FLOPS_PER_BYTE = 16.0


@dataclass(frozen=True)
class Segment:
    """Consecutive nodes of the forward pass; `freed`: those whose values are no longer saved if it is recomputed.

    `saved`: those that are saved for others. `needed`: the bytes of values from before it that are saved only
    then. `work`: the price of recomputing `freed`, in bytes that could be moved meanwhile.
    """

    nodes: Sequence[fx.Node]
    freed: Sequence[fx.Node]
    saved: Sequence[fx.Node]
    needed: int
    work: float

    @property
    def gain(self) -> int:
        """The bytes that are no longer saved."""
        return sum(map(_bytes, self.freed)) - self.needed


def recompute_to_budget(
    joint: JointGraph, saved: Collection[fx.Node], forward: Sequence[fx.Node], share: float
) -> None:
    """Mark segments as checkpoints until the values saved take at most a share of the bytes that `saved` do.

    `saved` is what the minimum cut saves, `forward` the calls of the forward pass. Inputs are not counted: they are
    alive anyway.
    """
    by_cut = {node for node in saved if node.op == "call_function" and not is_number_node(node)}
    total = sum(map(_bytes, by_cut))
    left = total
    # The last one's backward pass begins while all others are saved: recomputed, it would take the same memory again.
    segments = [one for one in [*_segments(joint, by_cut, forward)][:-1] if one.gain > 0]
    for number, segment in enumerate(sorted(segments, key=lambda one: one.work / one.gain), start=1):
        if left <= share * total:
            break
        _mark(segment, -number)
        left -= segment.gain


def _mark(segment: Segment, number: int) -> None:
    """Make a segment a checkpoint, and what it saves what the policy of one does."""
    for node in segment.nodes:
        CHECKPOINT_PATH.set(node, (number,))
    for node in segment.saved:
        SAVED_IN.set(node, (number,))


def _segments(joint: JointGraph, by_cut: Collection[fx.Node], forward: Sequence[fx.Node]) -> Iterator[Segment]:
    """Yield the segments of the forward pass; none that holds nodes of a checkpoint of the program's."""
    alive = _alive(forward)
    results = {view_root(node) for node in (*joint.slots, *joint.written, *joint.numbers)}
    every, begin, gained, within = {*forward}, 0, 0, _within_calls(forward)
    for at, node in enumerate(forward):
        gained += _bytes(node) if node in by_cut else 0
        is_last = at + 1 == len(forward)
        if not is_last and (at in within or gained < LEAST_GAIN * max(alive[at], 1) or alive[at + 1] < alive[at]):
            continue
        nodes = forward[begin : at + 1]
        if not any(map(CHECKPOINT_PATH.on, nodes)):
            yield _segment(nodes, by_cut, results, every)
        begin, gained = at + 1, 0


def _within_calls(forward: Sequence[fx.Node]) -> set[int]:
    """Return the positions between a call and the items of its results: what is not one tensor is not saved."""
    place = {node: at for at, node in enumerate(forward)}
    found = set[int]()
    for node, at in place.items():
        items = [place[user] for user in node.users if user.target is operator.getitem and user in place]
        found.update(range(at, max(items, default=at)))
    return found


def _segment(
    nodes: Sequence[fx.Node], by_cut: Collection[fx.Node], results: Collection[fx.Node], forward: Collection[fx.Node]
) -> Segment:
    inside = {*nodes}
    leaving = {view_root(node) for node in nodes if _leaves(node, inside, forward)} & inside
    once = {node for node in nodes if node in by_cut and any(_runs_once(one, inside) for one in node.all_input_nodes)}
    held = {*leaving, *results, *once}
    freed = [node for node in nodes if node in by_cut and node not in held and is_repeated(node, 0)]
    run, before = _recomputed(freed, {*by_cut} - {*freed}, inside)
    needed = sum(_bytes(node) for node in before if node not in by_cut)
    drawn_again = [node for node in once if any(map(is_redrawable, node.all_input_nodes))]
    return Segment(nodes, [*freed, *drawn_again], [*leaving, *once], needed, sum(map(_work, run)))


def _runs_once(node: fx.Node, inside: Collection[fx.Node]) -> bool:
    """Whether a value of a segment can only be saved: what is computed of it is saved instead, as masks are."""
    return node in inside and not is_number_node(node) and not is_repeated(node, 0)


def _leaves(node: fx.Node, inside: Collection[fx.Node], forward: Collection[fx.Node]) -> bool:
    """Whether a later segment of the forward pass reads a value."""
    return any(user in forward and user not in inside for user in node.users)


def _recomputed(
    wanted: Iterable[fx.Node], saved: Collection[fx.Node], inside: Collection[fx.Node]
) -> tuple[set[fx.Node], set[fx.Node]]:
    """Return the nodes of a segment that run again for the values wanted, and the values from outside they begin with.

    The latter are roots of views; those of the graph's inputs are left out.
    """
    run, before = set[fx.Node](), set[fx.Node]()
    pending = [*wanted]
    while pending:
        node = pending.pop()
        if node in run:
            continue
        run.add(node)
        for source in node.all_input_nodes:
            root = view_root(source)
            if source in inside and root not in saved:
                pending.append(source)
            elif root.op == "call_function" and not is_number_node(root):
                before.add(root)
    return run, before


def _alive(forward: Sequence[fx.Node]) -> list[int]:
    """Return, behind each node of the forward pass, the bytes of computed values that later ones read."""
    place = {node: at for at, node in enumerate(forward)}
    change = [0] * (len(forward) + 1)
    for root, last in _last_reads(forward, place).items():
        change[place[root]] += _bytes(root)
        change[last] -= _bytes(root)
    found, now = [], 0
    for step in change:
        now += step
        found.append(now)
    return found


def _last_reads(forward: Sequence[fx.Node], place: Mapping[fx.Node, int]) -> dict[fx.Node, int]:
    """Return the place of the last node that reads a value or a view of it, by the node that computes it."""
    found: dict[fx.Node, int] = {}
    for at, node in enumerate(forward):
        for source in node.all_input_nodes:
            root = view_root(source)
            if root in place:
                found[root] = at
    return found


def _bytes(node: fx.Node) -> int:
    return tensor_bytes(node.meta.get("val")) if view_root(node) is node else 0


def _work(node: fx.Node) -> float:
    """Return the price of a call in bytes: those of its result, and its floating-point operations."""
    if not is_pure(node) or view_root(node) is not node:
        return 0.0
    return _bytes(node) + _flops(node) / FLOPS_PER_BYTE


def _flops(node: fx.Node) -> float:
    """Return the floating-point operations of a matmul, convolution or attention, by torch's own count."""
    count = flop_count(node.target)
    if count is None:
        return 0.0
    args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), lambda one: _of_hints(one.meta["val"]))
    return float(count(*args, **kwargs, out_val=_of_hints(node.meta["val"])))


def _of_hints(value: Any) -> Any:
    """Return tensors without elements, or a number, with hints for symbols: a count compares sizes."""
    if isinstance(value, (tuple, list)):
        return [_of_hints(one) for one in value]
    if isinstance(value, torch.Tensor):
        return torch.empty([hint_or_guess(size) for size in value.shape], dtype=value.dtype, device="meta")
    return hint_or_guess(value)
