"""Recomputation of checkpoints: copies of their nodes in the backward pass.

Note [Recomputation]: a value of a checkpoint that its backward pass reads is computed again there, from what the
checkpoint takes from outside, by copies of its nodes right before the first reader: the copies of one checkpoint lie
where its backward pass begins, those of the checkpoint before it come later. A value that others read (a result of the
checkpoint) is saved for them. So the work is done once more, as in eager mode, and never for another checkpoint.

A checkpoint in another one is recomputed twice: as a part of the outer one, and from values of that recomputation when
its own backward pass begins.

Masks of dropout are drawn again, from the state of the generator before the draw, which is saved (see
`framesmith_aten.tracing.redrawn`).

Segments that a memory budget recomputes (Note [Budget]) are checkpoints too, with numbers below 0.

Saved all the same are other random numbers (small masks and those of GPUs as bool, see Note [Masks]), what the
checkpoint's policy saves, and what cannot be computed twice: calls that write, and results whose sizes depend on data.
"""

from __future__ import annotations

import itertools
import operator

import torch
from torch import fx

from framesmith_aot.trace.joint import JointGraph
from framesmith_aten.graphs.nodes import view_root
from framesmith_aten.graphs.numbers import is_number_node, numbers_in
from framesmith_aten.meta import CHECKPOINT_PATH, IN_BACKWARD, PHASE, READ_AGAIN, RECOMPUTED, SAVED_IN
from framesmith_aten.operators import arguments, is_mutable, is_random, row
from framesmith_aten.symbolic import hint_or_guess, is_symbolic
from framesmith_aten.tracing.redrawn import generator_state, redrawn_mask, state_bytes
from framesmith_guards.torch_adapter import OpOverload, aten

Path = tuple[int, ...]

#: Masks of fewer bytes than so many states of the generator are saved themselves.
FEWEST_STATES = 2


def recompute_checkpoints(joint: JointGraph) -> None:
    """Insert the recomputation of checkpoints into the backward pass, and mark what it reads from outside."""
    if any(CHECKPOINT_PATH.on(node) for node in joint.graph.nodes):
        _Recomputation(joint).run()


class _Recomputation:
    """The copies made so far, by the node and the checkpoint that recomputes it."""

    def __init__(self, joint: JointGraph) -> None:
        self.joint = joint
        self.copies: dict[tuple[fx.Node, Path], fx.Node] = {}
        self.redrawn = _redrawn_masks(joint)
        self.results = {*joint.slots, *joint.written}

    def run(self) -> None:
        for node in [*self.joint.graph.nodes]:
            if node.op != "call_function" or PHASE.get(node) != "backward":
                continue
            path = CHECKPOINT_PATH.get(node)
            if path is not None:
                IN_BACKWARD.set(node, True)
            for operand in node.all_input_nodes:
                if PHASE.get(operand) == "backward":
                    continue
                within = path if path is not None else self._path_of_inner(operand)
                if within:
                    node.replace_input_with(operand, self._recomputed(operand, within, node))
        for again in self.redrawn.values():
            [state, *_] = again.all_input_nodes
            self.joint.graph.erase_node(again)
            if not state.users:
                self.joint.graph.erase_node(state)

    def _path_of_inner(self, node: fx.Node) -> Path | None:
        """Return the path of a value that only its own checkpoint reads; None for a result of one."""
        path = CHECKPOINT_PATH.get(node)
        if path is None or node in self.results:
            return None
        forward = [user for user in node.users if PHASE.get(user) != "backward"]
        inside = all((CHECKPOINT_PATH.get(user) or ())[: len(path)] == path for user in forward)
        return path if inside else None

    def _recomputed(self, node: fx.Node, path: Path, before: fx.Node) -> fx.Node:
        """Return the value of `node` as the recomputation of the checkpoint `path` reads it, made before a node."""
        node = self.redrawn.get(node, node)
        within = _common(CHECKPOINT_PATH.get(node) or (), path)
        if not within or not is_repeated(node, within[-1]):
            if isinstance(node.meta.get("val"), torch.Tensor) and path[-1] >= 0:
                READ_AGAIN.set(view_root(node), True)
            return node
        known = self.copies.get((node, within))
        return known if known is not None else self._copied(node, within, before)

    def _copied(self, node: fx.Node, path: Path, before: fx.Node) -> fx.Node:
        """Copy a node after all that it needs: without recursion, since chains are as long as a model is deep."""
        pending = [node]
        while pending:
            last = pending[-1]
            inputs = [self.redrawn.get(one, one) for one in last.all_input_nodes]
            needed = [one for one in inputs if self._is_missing(one, path)]
            if needed:
                pending += needed
                continue
            pending.pop()
            within = _common(CHECKPOINT_PATH.of(last), path)
            if (last, within) not in self.copies:
                self.copies[last, within] = self._copy(last, within, before)
        return self.copies[node, path]

    def _is_missing(self, node: fx.Node, path: Path) -> bool:
        within = _common(CHECKPOINT_PATH.get(node) or (), path)
        return bool(within) and is_repeated(node, within[-1]) and (node, within) not in self.copies

    def _copy(self, node: fx.Node, path: Path, before: fx.Node) -> fx.Node:
        graph = self.joint.graph
        with graph.inserting_before(before):
            copy = graph.node_copy(node, lambda one: self._recomputed(one, path, before))
        copy.meta = {**node.meta}
        copy.meta.pop(SAVED_IN.name, None)
        PHASE.set(copy, "backward")
        CHECKPOINT_PATH.set(copy, path)
        RECOMPUTED.set(copy, True)
        IN_BACKWARD.set(copy, True)
        return copy


def _redrawn_masks(joint: JointGraph) -> dict[fx.Node, fx.Node]:
    """Return masks of checkpoints, each with a call that draws it again from a state read before the draw.

    The calls are there to be copied.
    """
    found: dict[fx.Node, fx.Node] = {}
    numbers = numbers_in(joint.graph)
    for drawn in joint.graph.find_nodes(op="call_function", target=aten.bernoulli.p):
        masks = [node for node in drawn.users if node.target is aten.ne.Scalar and CHECKPOINT_PATH.on(node)]
        if len(masks) != len(drawn.users) or not is_redrawable(drawn):
            continue
        with joint.graph.inserting_before(drawn):
            state = joint.graph.call_function(generator_state())
        with joint.fake_mode:
            state.meta = {**drawn.meta, "val": torch.empty(state_bytes(), dtype=torch.uint8, device="cpu")}
        size = [numbers.node_of(one) if is_symbolic(one) else one for one in drawn.meta["val"].shape]
        operands = (state, size, arguments(aten.bernoulli.p, drawn.args, drawn.kwargs)["p"])
        for mask in masks:
            with joint.graph.inserting_after(mask):
                found[mask] = joint.graph.call_function(redrawn_mask(), operands)
            found[mask].meta = {name: value for name, value in mask.meta.items() if name != SAVED_IN.name}
    return found


def is_redrawable(drawn: fx.Node) -> bool:
    """Whether a call draws a mask that the state of the generator determines, and that takes more memory."""
    if drawn.target is not aten.bernoulli.p:
        return False
    val = drawn.meta["val"]
    is_plain = val.device.type == "cpu" and val.is_contiguous() and not SAVED_IN.on(drawn)
    return is_plain and hint_or_guess(val.numel()) > FEWEST_STATES * state_bytes()


def _common(path: Path, other: Path) -> Path:
    """Return the path of the innermost checkpoint that holds both."""
    shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(path, other, strict=False))
    return tuple([number for number, _ in shared])


def is_repeated(node: fx.Node, checkpoint: int) -> bool:
    """Whether the recomputation of a checkpoint calls the node again, rather than reading what is saved of it."""
    if node.op != "call_function" or is_number_node(node) or checkpoint in (SAVED_IN.get(node) or ()):
        return False
    if node.target is operator.getitem:
        return all(is_repeated(one, checkpoint) for one in node.all_input_nodes)
    op = node.target
    return isinstance(op, OpOverload) and not (_is_called_once(op) or _draws(op, node))


def _is_called_once(op: OpOverload) -> bool:
    sized_by_data = torch.Tag.dynamic_output_shape in op.tags
    return is_mutable(op) or row(op).statistics or not op._schema.returns or sized_by_data


def _draws(op: OpOverload, node: fx.Node) -> bool:
    """Whether a call draws random numbers: attention without dropout does not, though its operator may."""
    return is_random(op) and arguments(op, node.args, node.kwargs).get("dropout_p") != 0
