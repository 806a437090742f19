"""Attention in training steps: the backward pass recomputes the probabilities, which are not saved.

Saved are each row's largest score and the logarithm of its sum: with a second matmul of queries and keys, and the same
changes of it, probabilities are exp(scores - largest - logarithm). They are two numbers, since one would be rounded to
the size of large scores, as those of padding masked by -3.4e38. The sum over a row of probabilities times their
gradients is that of results times their gradients, of which a row is shorter. So it is where the schedule makes one
kernel of the forward pass (`schedule/matmuls/attention.py`), and scores' gradients go to matmuls alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import fx

from framesmith_aten.graphs.tidying.cleanup import eliminate_dead
from framesmith_aten.meta import IN_BACKWARD, PHASE
from framesmith_aten.operators import is_pointwise, is_random, is_view
from framesmith_aten.symbolic import has_symbols
from framesmith_backends.ir.dtypes import FROM_TORCH, is_low_precision
from framesmith_backends.ir.fused.attention import Attends, why_not_deep
from framesmith_backends.reporting import Refusal, note
from framesmith_backends.rewrite.replacing import call, replaced
from framesmith_guards.torch_adapter import OpOverload, aten


@dataclass(frozen=True, slots=True)
class TrainingPattern:
    """Attention of which a gradient is computed.

    Scores are computed from the `matmul` by `changes`, in order; `softmax` makes them probabilities, which pass through
    `chain` until `pv_matmul` multiplies them by values. `fully_masked` says which rows have no key, whose probabilities
    are zeros. `slope` is softmax's backward operation, None where probabilities alone are read.
    """

    matmul: fx.Node
    changes: tuple[fx.Node, ...]
    softmax: fx.Node
    fully_masked: fx.Node | None
    chain: tuple[fx.Node, ...]
    pv_matmul: fx.Node
    slope: fx.Node | None

    @property
    def scores(self) -> fx.Node:
        return self.changes[-1] if self.changes else self.matmul


def recompute_probabilities(graph: fx.Graph, attends: Attends) -> fx.Graph | None:
    """Return the graph of a training step whose backward pass recomputes attention's probabilities; None if none."""
    if not any(node.target is aten._softmax.default for node in graph.nodes):
        return None
    new = replaced(graph, {})
    found = []
    for softmax in new.find_nodes(op="call_function", target=aten._softmax.default):
        one = trained(softmax)
        if isinstance(one, TrainingPattern) and (why := _why_not_one_kernel(one, attends)):
            one = Refusal(why)
        if isinstance(one, TrainingPattern):
            found.append(one)
        elif one is not None:
            note("recomputed probabilities", softmax.name, one)
    for one in found:
        _rewrite(new, one)
    eliminate_dead(new)
    return new if found else None


def _why_not_one_kernel(one: TrainingPattern, attends: Attends) -> str | None:
    kinds = {low_precision_before_cast(operand) for operand in one.matmul.args[:2]}
    if len(kinds) > 1:
        return "the kernels of gradients have one type for queries and keys"
    (kind,) = kinds
    device = one.matmul.meta["val"].device.type
    return None if attends("f32" if kind is None else FROM_TORCH[kind], device) else "no fused attention of this type"


def low_precision_before_cast(node: object) -> torch.dtype | None:
    """The low-precision type that the node's elements were of before they were cast, through views; None of others."""
    while isinstance(node, fx.Node) and is_view(node.target):
        node = node.args[0]
    if not _is_call(node, aten._to_copy.default):
        return None
    kind = node.all_input_nodes[0].meta["val"].dtype
    return kind if is_low_precision(kind) else None


def trained(softmax: fx.Node) -> TrainingPattern | Refusal | None:
    """Return the attention that takes this softmax; None for a softmax of the backward pass."""
    scores, dim, *_ = softmax.args
    value = softmax.meta["val"]
    assert isinstance(scores, fx.Node) and isinstance(dim, int)
    if _is_late(softmax):
        return None
    if has_symbols(value) or value.dtype != torch.float32 or dim not in (-1, value.dim() - 1):
        return Refusal("no softmax of float32 along the last dimension, with fixed sizes")
    if not (value.is_contiguous() and scores.meta["val"].is_contiguous()):
        return Refusal("scores that are not contiguous")
    probabilities, fully_masked = _unless_fully_masked(softmax)
    chain = _until_matmul(probabilities)
    if isinstance(chain, Refusal):
        return chain
    *before, pv_matmul = chain
    changed = _changes(scores)
    if isinstance(changed, Refusal):
        return changed
    matmul, changes = changed
    if why := _why_not_alone((matmul, *changes), softmax, fully_masked):
        return Refusal(why)
    if why := _why_sizes(matmul, pv_matmul):
        return Refusal(why)
    one = TrainingPattern(matmul, changes, softmax, fully_masked, (softmax, probabilities, *before), pv_matmul, None)
    return _with_slope(one)


def _is_late(node: fx.Node) -> bool:
    return PHASE.get(node) == "backward"


def _early_users(node: fx.Node) -> list[fx.Node]:
    return [user for user in node.users if not _is_late(user)]


def _late_users(node: fx.Node) -> list[fx.Node]:
    return [user for user in node.users if _is_late(user)]


def _unless_fully_masked(softmax: fx.Node) -> tuple[fx.Node, fx.Node | None]:
    """The probabilities, and the mask of rows of -inf, of which they are zeros."""
    users = _early_users(softmax)
    if len(users) != 1 or users[0].target is not aten.where.self or users[0].args[2] is not softmax:
        return softmax, None
    fully_masked, zeros, _ = users[0].args
    if not _is_call(fully_masked, aten.all.dim) or not _is_call(zeros, aten.full.default):
        return softmax, None
    lowest = fully_masked.args[0]
    if not _is_call(lowest, aten.eq.Scalar) or lowest.args != (softmax.args[0], -torch.inf):
        return softmax, None
    return (users[0], fully_masked) if zeros.args[1] == 0 and fully_masked.args[2:] == (True,) else (softmax, None)


def _is_call(node: object, *targets: OpOverload) -> TypeGuard[fx.Node]:
    return isinstance(node, fx.Node) and node.target in targets


def _until_matmul(probabilities: fx.Node) -> Sequence[fx.Node] | Refusal:
    """The operations on the probabilities up to the P·V matmul, and that matmul."""
    found: list[fx.Node] = []
    node = probabilities
    while True:
        users = _early_users(node)
        if len(users) != 1:
            return Refusal("probabilities are read by others too")
        (user,) = users
        if user.target is aten.bmm.default:
            are_rows = user.args[0] is node and user.args[1] is not node
            return [*found, user] if are_rows else Refusal("probabilities are not the rows")
        if user.target not in (aten._to_copy.default, aten.view.default):
            return Refusal(f"probabilities become those of {user.target}")
        found.append(user)
        node = user


def _changes(scores: fx.Node) -> tuple[fx.Node, tuple[fx.Node, ...]] | Refusal:
    """The matmul that scores are computed of, and what computes them of it, in order."""
    matmuls: dict[fx.Node, None] = {}
    seen: dict[fx.Node, None] = {}
    pending = [scores]
    while pending:
        node = pending.pop()
        if node in seen or node in matmuls:
            continue
        if node.target is aten.bmm.default:
            matmuls[node] = None
        elif node.op == "call_function" and (is_pointwise(node.target) or is_view(node.target)):
            seen[node] = None
            pending += node.all_input_nodes
    if len(matmuls) != 1:
        return Refusal("scores of another number of matmuls than one")
    (matmul,) = matmuls
    depends = {matmul}
    changes = []
    for node in scores.graph.nodes:
        if node in seen and not depends.isdisjoint(node.all_input_nodes):
            depends.add(node)
            changes.append(node)
    if any(is_random(node.target) for node in changes):
        return Refusal("random numbers")
    return matmul, tuple(changes)


def _why_not_alone(nodes: Sequence[fx.Node], softmax: fx.Node, fully_masked: fx.Node | None) -> str | None:
    """Why the scores are needed for something else, or None."""
    known = {*nodes, softmax}
    if fully_masked is not None:
        known |= {fully_masked, *fully_masked.all_input_nodes}
        if _early_users(fully_masked) != [next(iter(_early_users(softmax)))]:
            return "it is read where nothing is seen"
    others = [user for node in nodes for user in _early_users(node) if user not in known]
    return f"scores are read by {others[0].target} too" if others else None


def _why_sizes(matmul: fx.Node, pv_matmul: fx.Node) -> str | None:
    first, second = matmul.meta["val"], pv_matmul.meta["val"]
    operands = [node.meta["val"] for node in (*matmul.args, *pv_matmul.args)]  # type: ignore[union-attr]
    if first.dtype != torch.float32 or any(has_symbols(one) or 0 in one.shape for one in (first, second, *operands)):
        return "scores of another type, or of dynamic shapes"
    if 1 in first.shape[1:]:
        return "one query or one key"
    if operands[2].shape != first.shape:
        return "the second matmul is of other rows"
    if second.shape[2] == first.shape[2]:
        return "as many keys as elements of a value: sums over either would share a kernel"
    casts = [low_precision_before_cast(node) for node in matmul.args[:2]]
    kind = FROM_TORCH[casts[0]] if casts[0] is not None and casts[0] == casts[1] else "f32"
    return why_not_deep(max(operands[0].shape[2], second.shape[2]), kind)


def _with_slope(one: TrainingPattern) -> TrainingPattern | Refusal:
    """The attention with the backward operation of its softmax, if gradients go from there to matmuls alone."""
    chain = [*dict.fromkeys(one.chain)]
    late = [(node, user) for node in chain for user in _late_users(node)]
    gradient_of = aten._softmax_backward_data.default
    slopes = {user for node, user in late if user.target is gradient_of and user.args[1] is node}
    if not slopes:
        return one if late else Refusal("no gradient")
    if len(slopes) > 1:
        return Refusal("several gradients")
    (slope,) = slopes
    gradient, probabilities, _, _ = slope.args
    steps: list[Any] = [gradient]
    while _is_call(steps[-1], aten._to_copy.default, aten.view.default):
        steps.append(steps[-1].args[0])
    made = steps[-1]
    if not _is_call(made, aten.bmm.default) or not _is_late(made):
        return Refusal("probabilities' gradient is not that of their matmul alone")
    if any([*node.users] != [user] for node, user in zip(steps, (slope, *steps), strict=False)):
        return Refusal("probabilities' gradient is read by others too")
    transposed = made.args[1]
    if not _is_call(transposed, aten.permute.default) or transposed.args != (one.pv_matmul.args[1], [0, 2, 1]):
        return Refusal("probabilities' gradient is of other values")
    if probabilities is not one.chain[1]:
        return Refusal("softmax's gradient is of other probabilities")
    if not (slope.meta["val"].is_contiguous() and steps[0].meta["val"].is_contiguous()):
        return Refusal("gradients that do not lie in rows")
    if why := _why_not_to_matmuls(slope):
        return Refusal(why)
    return replace(one, slope=slope)


def _why_not_to_matmuls(slope: fx.Node) -> str | None:
    """Why the scores' gradient is needed for something else than matmuls, or None."""
    pending, seen = [slope], {slope}
    while pending:
        node = pending.pop()
        for user in node.users:
            if user.target is aten.bmm.default:
                continue
            if user.op != "call_function" or not (is_pointwise(user.target) or is_view(user.target)):
                return f"the scores' gradient is read by {user.target}"
            if user not in seen:
                seen.add(user)
                pending.append(user)
    return None


class _Writer:
    """Writes calls before a node of the graph."""

    def __init__(self, graph: fx.Graph, before: fx.Node, like: fx.Node) -> None:
        self.graph, self.before, self.meta = graph, before, like.meta

    def call(self, target: OpOverload, *args: Any, **kwargs: Any) -> fx.Node:
        with self.graph.inserting_before(self.before):
            return call(self.graph, self.meta, target, *args, **kwargs)

    def again(self, node: fx.Node, instead: dict[fx.Node, fx.Node]) -> fx.Node:
        """The same computation of what stands for its operands."""
        with self.graph.inserting_before(self.before):
            made = self.graph.node_copy(node, lambda n: instead.get(n, n))
        made.meta = {**node.meta, PHASE.name: self.meta[PHASE.name]}
        return made


def _rewrite(graph: fx.Graph, one: TrainingPattern) -> None:
    """Let the backward pass read a second matmul, and what is computed of it."""
    parts = [*_casts(one), one.matmul, *one.changes, *dict.fromkeys(one.chain)]
    readers = {user for node in parts for user in _late_users(node)}
    first = next(node for node in graph.nodes if node in readers)
    largest, logarithms = _of_rows(_Writer(graph, next(iter(_early_users(one.softmax))), one.softmax), one)
    w = _Writer(graph, first, first)
    instead: dict[fx.Node, fx.Node] = {}
    for node in (*_casts(one), one.matmul, *one.changes):
        instead[node] = w.again(node, instead)
        IN_BACKWARD.set(instead[node], True)
    below = w.call(aten.sub.Tensor, instead[one.scores], largest)
    probabilities = w.call(aten.exp.default, w.call(aten.sub.Tensor, below, logarithms))
    # Views of what they stand for are views of them: they have its memory, as far as fakes have any.
    probabilities.meta["val"] = one.chain[1].meta["val"]
    instead[one.chain[0]] = instead[one.chain[1]] = probabilities
    for node in one.chain[2:]:
        instead[node] = w.again(node, instead)
    if one.slope is not None:
        _write_slope(graph, one, probabilities)
    for node, copy in instead.items():
        for user in _late_users(node):
            if user not in {*instead.values()}:
                user.replace_input_with(node, copy)


def _casts(one: TrainingPattern) -> list[fx.Node]:
    """The casts to float32 of low-precision queries and keys, in order: the operands are saved, not these."""
    found: dict[fx.Node, None] = {}
    for operand in one.matmul.args[:2]:
        if low_precision_before_cast(operand) is None:
            continue
        steps = [operand]
        while isinstance(steps[-1], fx.Node) and steps[-1].target is not aten._to_copy.default:
            steps.append(steps[-1].args[0])
        found.update((step, None) for step in reversed(steps) if isinstance(step, fx.Node))
    return list(found)


def _of_rows(w: _Writer, one: TrainingPattern) -> tuple[fx.Node, fx.Node]:
    """Each row's largest score, and the logarithm of the sum of powers below it; 0 of rows that see nothing."""
    largest = w.call(aten.amax.default, one.scores, [-1], True)
    powers = w.call(aten.exp.default, w.call(aten.sub.Tensor, one.scores, largest))
    logarithms = w.call(aten.log.default, w.call(aten.sum.dim_IntList, powers, [-1], True))
    if one.fully_masked is None:
        return largest, logarithms
    first, second = (w.call(aten.masked_fill.Scalar, node, one.fully_masked, 0) for node in (largest, logarithms))
    return first, second


def _write_slope(graph: fx.Graph, one: TrainingPattern, probabilities: fx.Node) -> None:
    """Write `probabilities * (gradient - sum)`, with the sum over a row of results times their gradients."""
    assert one.slope is not None
    made = one.slope.all_input_nodes[0]
    while made.target is not aten.bmm.default:
        made = made.all_input_nodes[0]
    w = _Writer(graph, one.slope, one.slope)
    gradient, results = (_in_float32(w, node) for node in (made.args[0], one.pv_matmul))
    sums = w.call(aten.sum.dim_IntList, w.call(aten.mul.Tensor, gradient, results), [-1], True)
    sums = w.call(aten.view.default, sums, [*probabilities.meta["val"].shape[:-1], 1])
    below = w.call(aten.sub.Tensor, one.slope.args[0], sums)
    gradients = w.call(aten.mul.Tensor, below, probabilities)
    gradients.meta["val"] = one.slope.meta["val"]
    one.slope.replace_all_uses_with(gradients)


def _in_float32(w: _Writer, node: Any) -> fx.Node:
    """The node's values in float32; it is the node that is kept, and not these."""
    if node.meta["val"].dtype == torch.float32:
        return node  # type: ignore[no-any-return]
    made = w.call(aten._to_copy.default, node, dtype=torch.float32)
    IN_BACKWARD.set(made, True)
    return made
