"""Recompute policy: partitions a joint graph into a forward and a backward graph for each autograd node.

Note [Partition]: a forward value that the backward pass needs is either saved or recomputed. The choice is a minimum
cut. Each forward node is a pair of vertices: cutting `in -> out` saves it (capacity: its bytes), cutting `source -> in`
recomputes it (capacity: the price of the work, infinite for calls that must not run twice).

Memory that the user can see is saved only where eager mode saves it as well: otherwise a later mutation would raise
where eager mode does not, or, through `.data`, change gradients. Where nothing else serves, a copy is saved. Work that
only the backward pass does on memory that eager mode saves and the user can see runs in the backward pass; it reads
mutated inputs themselves (`JointGraph.late_inputs`). A result that eager mode saves costs nothing to save, and is never
recomputed: the user holds it, a mutation of it has to raise, and the backward pass reads its contents at that time.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import fx

from framesmith_aot.errors import AotUnsupported
from framesmith_aot.partition.budget import recompute_to_budget
from framesmith_aot.partition.checkpoints import recompute_checkpoints
from framesmith_aot.partition.masks import narrow_masks
from framesmith_aot.partition.mincut import INFINITE, FlowNetwork
from framesmith_aot.trace.backward import JointNode
from framesmith_aot.trace.joint import JointGraph, clone_node
from framesmith_aot.trace.output_groups import NodeShape
from framesmith_aten.graphs.nodes import dependents, is_pure, tensor_bytes, view_root, view_source
from framesmith_aten.graphs.numbers import FUNCTIONS, LAYOUT_QUERIES, is_number_node, numbers_in, numbers_of
from framesmith_aten.graphs.tidying.cleanup import is_removable
from framesmith_aten.layouts import is_dense
from framesmith_aten.meta import CHECKPOINT_PATH, HELD, IN_BACKWARD, PHASE, READ_AGAIN, REENTRANT
from framesmith_aten.operators import is_custom, is_factory, is_pointwise, is_view, op_name, row
from framesmith_aten.symbolic import has_symbols, hint_or_guess
from framesmith_guards.torch_adapter import aten

#: Price of recomputing a costly element, in saved bytes.
COSTLY_PRICE = 1.0

#: Price of gathering an element again, in saved bytes: less than a saved float; not 0, as the matmul or convolution
#: that reads it needs it in memory.
GATHERED_PRICE = 1.5

#: Price of saving memory that the user may mutate, which takes a copy: more than all else together.
PRICE_OF_VISIBLE = 1e15

#: Share of its bytes that saving a node of this kind costs: an input is usually alive anyway.
PRICE_OF_EXISTING = {"placeholder": 0.25}


@dataclass(frozen=True)
class Saved:
    """A tensor or number saved for backward: input `index` or result `index` of the forward graph."""

    from_input: bool
    index: int


@dataclass(frozen=True)
class NodePart:
    """The backward graph of one autograd node.

    It takes the tensors that are `saved`, the `late_inputs` (see `JointGraph`), the `numbers`, then the node's
    tangents; `grad_positions` gives for each operand the position of its gradient among the results (None: it has
    none). `watched`: saved by eager mode and not read here; a mutation of it is an error all the same. `stand_ins`:
    inputs, and the position among `saved` of a copy or cast of each that holds all the graph reads of it. `reentrant`:
    it recomputes a reentrant checkpoint, which eager mode does in `backward()` without `inputs` alone.
    """

    shape: NodeShape
    graph: fx.Graph
    saved: list[Saved]
    grad_positions: list[int | None]
    watched: list[Saved]
    late_inputs: list[int] = field(default_factory=list)
    numbers: list[Saved] = field(default_factory=list)
    stand_ins: Mapping[int, int] = field(default_factory=dict)
    reentrant: bool = False

    def without_graph(self) -> NodePart:
        """Return the record without the graph, which the `BackwardPass` owns."""
        return replace(self, graph=fx.Graph())

    @property
    def reads(self) -> bool:
        """Whether the pass reads tensors of the call: otherwise it is linear in the tangents, or constant."""
        return bool(self.saved or self.late_inputs or self.shape.asks_absent)

    @property
    def saved_tensors(self) -> list[Saved]:
        """The tensors given to `save_for_backward`: saved ones, then watched ones."""
        return [*self.saved, *self.watched]

    @property
    def saved_inputs(self) -> set[int]:
        return {one.index for one in self.saved_tensors if one.from_input}


@dataclass(frozen=True)
class Partition:
    """The forward graph, and the backward part of each autograd node."""

    forward: fx.Graph
    parts: list[NodePart]


def backward_nodes(joint: JointGraph) -> set[fx.Node]:
    """Return the nodes that depend on a tangent or a late input, and calls that only the backward pass makes.

    The latter have effects, are constants, or carry the mark `IN_BACKWARD`.
    """
    found: set[fx.Node] = {*joint.tangents, *joint.late_inputs.values()}
    for node in joint.graph.nodes:
        if node.op == "output":
            continue
        from_backward = node.op == "call_function" and PHASE.get(node) == "backward"
        alone = from_backward and (not is_pure(node) or _is_of(node, found))
        if alone or IN_BACKWARD.get(node) or any(source in found for source in node.all_input_nodes):
            found.add(node)
    return found


def _is_of(node: fx.Node, found: Collection[fx.Node]) -> bool:
    """Whether a tensor is computed from the nodes in `found` and from numbers alone."""
    others = [source for source in node.all_input_nodes if source not in found]
    return not is_number_node(node) and all(map(is_number_node, others))


def partition(joint: JointGraph, memory_budget: float = 1.0) -> Partition:
    """Partition `joint`. Inputs that the graph overwrites are never saved themselves; a copy is.

    `memory_budget`: the share of the bytes of what the minimum cut saves that may be saved; see Note [Budget].
    """
    symbols = _symbols(joint) if len(joint.tangents) > 1 else []
    narrow_masks(joint)
    if memory_budget < 1:
        in_backward = backward_nodes(joint)
        forward = [node for node in joint.graph.nodes if node.op == "call_function" and PHASE.get(node) != "backward"]
        saved = choose_saved(joint, in_backward, set(), [node for node in symbols if node not in in_backward])
        recompute_to_budget(joint, saved, forward, memory_budget)
    recompute_checkpoints(joint)
    in_backward = backward_nodes(joint)
    in_backward |= _read_when_it_runs(joint, in_backward)
    _copy_overwritten(joint, in_backward)
    slots, inputs = _saved_by_eager(joint, in_backward)
    # Memory that the user holds and eager mode does not save.
    visible = {*joint.inputs, *map(view_root, joint.slots)} - inputs - {*map(view_root, slots)}
    visible = {node for node in visible if not READ_AGAIN.get(node)}
    _refuse_zeros_of_late_lengths(in_backward, symbols)
    saved = choose_saved(joint, in_backward, visible, [node for node in symbols if node not in in_backward])
    copies = {node: clone_node(joint, node) for node in saved if node in visible and _is_compact(node)}
    return _extract(joint, in_backward, saved, copies)


def _read_when_it_runs(joint: JointGraph, in_backward: set[fx.Node]) -> set[fx.Node]:
    """Return what only the backward pass computes of memory that eager mode saves and the user holds.

    Eager mode reads it when the pass runs: it may have been changed through `.data`.
    """
    slots, inputs = _saved_by_eager(joint, in_backward)
    user_memory = {view_root(node) for node in slots} | inputs - overwritten_inputs(joint)
    found: set[fx.Node] = set()
    for node in joint.graph.nodes:
        if node.op != "call_function" or PHASE.get(node) != "backward" or node in in_backward:
            continue
        reads = not is_number_node(node) and any(view_root(one) in user_memory for one in node.all_input_nodes)
        if reads or any(one in found for one in node.all_input_nodes):
            found.add(node)
    return found


def overwritten_inputs(joint: JointGraph) -> set[fx.Node]:
    return {joint.inputs[index] for index in joint.meta.mutated}


def _copy_overwritten(joint: JointGraph, in_backward: set[fx.Node]) -> None:
    """Give backward work that reads an overwritten input a copy made before the write."""
    overwritten = overwritten_inputs(joint)
    copies: dict[fx.Node, fx.Node] = {}
    for node in [node for node in joint.graph.nodes if node in in_backward]:
        for operand in node.all_input_nodes:
            if operand not in in_backward and view_root(operand) in overwritten:
                if operand not in copies:
                    copies[operand] = clone_node(joint, operand)
                node.replace_input_with(operand, copies[operand])


def _is_compact(node: fx.Node) -> bool:
    val = node.meta["val"]
    return isinstance(val, torch.Tensor) and is_dense(val.shape, val.stride())


def choose_saved(
    joint: JointGraph, in_backward: set[fx.Node], visible: set[fx.Node], symbols: Sequence[fx.Node] = ()
) -> list[fx.Node]:
    """Return the forward nodes to save, in graph order; those of `visible` only where nothing else serves.

    `symbols` are numbers that must be available.
    """
    in_forward = [node for node in joint.graph.nodes if node not in in_backward and node.op != "output"]
    number = {node: 2 * index for index, node in enumerate(in_forward)}
    wanted = [*_wanted(joint, in_backward), *symbols]
    source, sink = 2 * len(in_forward), 2 * len(in_forward) + 1
    network = FlowNetwork(sink + 1)
    slots, _ = _saved_by_eager(joint, in_backward)
    saved_slots = _owning_memory(slots)
    overwritten = overwritten_inputs(joint)
    for node in in_forward:
        vertex = number[node]
        price = 0.0 if node in saved_slots else _saving_price(node, visible)
        network.add_edge(vertex, vertex + 1, INFINITE if node in overwritten else price)
        recompute = INFINITE if node in saved_slots else repeat_price(node)
        if recompute > 0:
            network.add_edge(source, vertex, recompute)
        if recompute < INFINITE:
            for operand in node.all_input_nodes:
                network.add_edge(number[operand] + 1, vertex, INFINITE)
    for node in wanted:
        network.add_edge(number[node] + 1, sink, INFINITE)
    side = network.source_side(source, sink)
    assert side is not None, "every value can be saved, or is a view or item of one"
    return [
        node for node in in_forward if number[node] in side and number[node] + 1 not in side and node.op != "get_attr"
    ]


def _wanted(joint: JointGraph, in_backward: set[fx.Node]) -> list[fx.Node]:
    found: dict[fx.Node, None] = {}
    for node in joint.graph.nodes:
        if node in in_backward:
            found.update((source, None) for source in node.all_input_nodes if source not in in_backward)
    found.update((grad, None) for grad in joint.grads if grad not in in_backward)
    return list(found)


def _symbols(joint: JointGraph) -> list[fx.Node]:
    """Return the symbols in shapes of the backward pass: absent tangents may need zeros of those shapes."""
    wanted = {
        symbol
        for node in joint.graph.nodes
        if PHASE.get(node) == "backward"
        and isinstance(value := node.meta.get("val"), torch.Tensor)
        and has_symbols(value)
        for number in numbers_of(value).values()
        for symbol in number.node.expr.free_symbols
    }
    if not wanted:
        return []
    numbers = numbers_in(joint.graph)
    return [node for symbol in sorted(wanted, key=str) if (node := numbers.symbol(symbol)) is not None]


def _refuse_zeros_of_late_lengths(in_backward: set[fx.Node], symbols: Sequence[fx.Node]) -> None:
    """Raise AotUnsupported where zeros for an absent gradient have a length that only that gradient determines."""
    symbols_of_backward = {node.meta["val"].node.expr for node in symbols if node in in_backward}
    for node in in_backward if symbols_of_backward else ():
        operands = [
            one for one in node.all_input_nodes if one in in_backward and isinstance(one.meta["val"], torch.Tensor)
        ]
        lengths = [number for one in operands for number in numbers_of(one.meta["val"]).values()]
        if len(operands) > 1 and any(symbols_of_backward & number.node.expr.free_symbols for number in lengths):
            why = "zeros for an absent gradient would have a length that only the gradient determines"
            raise AotUnsupported("data-dependent", "a length in the backward pass", why)


def _saved_by_eager(joint: JointGraph, in_backward: set[fx.Node]) -> tuple[set[fx.Node], set[fx.Node]]:
    """Return the slots and inputs that eager mode saves for the backward passes of all nodes that may read them."""
    slots_of = [{joint.slots[index] for index in node.shape.eager_saved.slots} for node in joint.nodes]
    inputs_of = [{joint.inputs[index] for index in node.shape.eager_saved.inputs} for node in joint.nodes]
    owned = [
        # A gradient need not depend on a tangent.
        (dependents(joint.graph, node.tangents) | {grad for grad in node.grads if grad is not None}) & in_backward
        for node in joint.nodes
    ]
    slots, inputs = set[fx.Node]().union(*slots_of), set[fx.Node]().union(*inputs_of)
    for own, nodes in zip(slots_of, owned, strict=True):
        slots -= _readable(nodes, in_backward) - own
    saved_slots = _owning_memory(slots)
    for own, nodes in zip(inputs_of, owned, strict=True):
        inputs -= _readable(nodes, in_backward, saved_slots) - own
    return slots, inputs


def _owning_memory(slots: Collection[fx.Node]) -> set[fx.Node]:
    """Return the slots, of those that eager mode saves, that own their memory."""
    return {slot for slot in slots if view_source(slot) is None}


def _readable(
    owned: Iterable[fx.Node], in_backward: set[fx.Node], saved_slots: Collection[fx.Node] = ()
) -> set[fx.Node]:
    """Return the forward nodes that backward ones may read, also to recompute nodes that are not `saved_slots`."""
    run = [*owned]
    seen = {*run}
    for node in run:
        before = [source for source in node.all_input_nodes if source in in_backward and source not in seen]
        seen.update(before)
        run += before
    found = {source for node in run for source in node.all_input_nodes if source not in in_backward}
    pending = [*found]
    for node in pending:
        if node not in saved_slots and repeat_price(node) < INFINITE:
            fresh = {*node.all_input_nodes} - found
            found |= fresh
            pending += fresh
    return found


def _saving_price(node: fx.Node, visible: set[fx.Node]) -> float:
    """Return the price of saving `node` in bytes. `visible`: the user holds it and eager mode does not save it."""
    val = node.meta["val"]
    if node.op == "get_attr":
        return 0.0
    if not isinstance(val, torch.Tensor):
        return 1.0 if is_number_node(node) else INFINITE
    if view_source(node) is not None:
        return INFINITE
    if node in visible:
        return PRICE_OF_VISIBLE + float(tensor_bytes(val))
    return PRICE_OF_EXISTING.get(node.op, 1.0) * float(tensor_bytes(val)) + 64.0


def repeat_price(node: fx.Node) -> float:
    """Return the price of recomputing `node` in the backward pass, in saved bytes."""
    if node.op != "call_function":
        return INFINITE
    if is_view(node.target) or node.target is operator.getitem or is_factory(node.target):
        return 0.0
    val = node.meta["val"]
    if node.target in FUNCTIONS and is_number_node(node):
        return 0.0
    if CHECKPOINT_PATH.on(node):  # what its own backward pass reads is recomputed by copies
        return INFINITE
    if not is_pure(node) or not isinstance(val, torch.Tensor):
        return INFINITE
    priced = None if is_custom(node.target) else REPEAT_PRICES.get(op_name(node.target))
    if priced is not None:
        return priced(val)
    if not is_pointwise(node.target):
        return INFINITE
    return COSTLY_PRICE * float(hint_or_guess(val.numel())) if row(node.target).costly else 0.0


def _gathered(val: torch.Tensor) -> float:
    return GATHERED_PRICE * float(hint_or_guess(val.numel()))


#: Prices of recomputation for operators that are not elementwise.
REPEAT_PRICES: dict[str, Callable[[torch.Tensor], float]] = {
    "cat": _gathered, "index": _gathered, "index_select": _gathered, "embedding": _gathered, "gather": _gathered,
    "upsample_nearest2d": _gathered, "constant_pad_nd": _gathered,
}  # fmt: skip


def _extract(
    joint: JointGraph, in_backward: set[fx.Node], saved: list[fx.Node], copies: Mapping[fx.Node, fx.Node]
) -> Partition:
    """Build the graphs. `copies`: the clone that stands for a saved node."""
    for index, slot in enumerate(joint.slots):
        if view_source(slot) is not None and view_root(slot) in saved:
            joint.slots[index] = clone_node(joint, slot)
    given = {*joint.inputs, *joint.slots} - {*copies}
    results = list(dict.fromkeys(copies.get(node, node) for node in saved if node not in given))
    numbers = [joint.numbers[at] for at in returned_numbers(joint)]
    results = [node for node in results if node not in numbers]
    forward = forward_graph(joint, results, in_backward)
    locations = {node: Saved(False, index) for index, node in enumerate([*joint.slots, *numbers, *results])}
    locations.update({node: Saved(True, index) for index, node in enumerate(joint.inputs)})
    locations.update({node: locations[copy] for node, copy in copies.items()})
    unbound = zip(joint.nodes, _unbound(joint, in_backward), strict=True)
    return Partition(forward, [_node_part(joint, node, saved, calls, locations) for node, calls in unbound])


def _unbound(joint: JointGraph, in_backward: set[fx.Node]) -> list[set[fx.Node]]:
    """Return, for each autograd node, the calls of its backward pass that run though nothing uses them.

    Those that depend on no tangent belong to the node that runs first; recomputation runs where it is used.
    """
    owned = [dependents(joint.graph, node.tangents) for node in joint.nodes]
    owned[-1] = owned[-1] | {node for node in in_backward.difference(*owned) if not CHECKPOINT_PATH.on(node)}
    return [nodes & in_backward for nodes in owned]


def _node_part(
    joint: JointGraph,
    node: JointNode,
    saved: Sequence[fx.Node],
    unbound: Collection[fx.Node],
    locations: Mapping[fx.Node, Saved],
) -> NodePart:
    wanted = list(dict.fromkeys(grad for grad in node.grads if grad is not None))
    graph = fx.Graph()
    saved = sorted(saved, key=is_number_node)
    tensors = sum(not is_number_node(value) for value in saved)
    given = [*saved[:tensors], *joint.late_inputs.values(), *saved[tensors:]]
    env = _copy_needed(joint.graph, graph, [*given, *node.tangents], wanted, unbound)
    graph.output(tuple(env[grad] for grad in wanted))
    partial = len(node.tangents) > 1  # some may be absent, see `_symbols`
    used = dict.fromkeys(value for value in given if env[value].users or (partial and is_number_node(value)))
    for value in given:
        if value not in used:
            graph.erase_node(env[value])
    late_inputs = [index for index, value in joint.late_inputs.items() if value in used]
    others = {*joint.late_inputs.values()}
    found = [value for value in used if value not in others]
    where = {grad: position for position, grad in enumerate(wanted)}
    at = [None if grad is None else where[grad] for grad in node.grads]
    eager_saved = [Saved(False, index) for index in node.shape.eager_saved.slots]
    eager_saved += [Saved(True, index) for index in node.shape.eager_saved.inputs if index not in joint.meta.mutated]
    taken = [locations[value] for value in found if not is_number_node(value)]
    numbers = [locations[value] for value in found if is_number_node(value)]
    holding = [value for value in found if locations[value].from_input]
    _mark_held(env[value] for value in (*node.tangents, *joint.late_inputs.values(), *holding))
    known = {*taken}
    watched = [one for one in eager_saved if one not in known]
    stand_ins = dict(_stand_ins(joint, found, locations))
    reentrant = any(REENTRANT.on(one) for one in graph.nodes)
    return NodePart(node.shape, graph, taken, at, watched, late_inputs, numbers, stand_ins, reentrant)


def _stand_ins(
    joint: JointGraph, used: Sequence[fx.Node], locations: Mapping[fx.Node, Saved]
) -> Iterator[tuple[int, int]]:
    """Yield unmutated inputs, and the positions of their copies, or of the casts that are their only readers."""
    inputs = {node: at for at, node in reversed([*enumerate(joint.inputs)])}
    for position, value in enumerate(used):
        is_cast = value.target is aten._to_copy.default
        source = value.all_input_nodes[0] if is_cast else value
        if locations[value].from_input or source not in inputs:
            continue
        if is_cast and ({*source.users} != {value} or not _is_lossless(value.meta["val"], source.meta["val"])):
            continue
        at = inputs[source]
        if at not in joint.meta.mutated:
            yield at, position


def _is_lossless(cast: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether a cast, cast back and forth, gives the same values."""
    if not (source.is_floating_point() and cast.is_floating_point() and source.device == cast.device):
        return False
    one, other = torch.finfo(cast.dtype), torch.finfo(source.dtype)
    return _holds(one, other) or _holds(other, one)


def _holds(wide: torch.finfo, narrow: torch.finfo) -> bool:
    """Whether one floating dtype represents all values of another (`torch.promote_types` refuses float8)."""
    least, smallest = (kind.smallest_normal * kind.eps for kind in (wide, narrow))
    return wide.eps <= narrow.eps and wide.max >= narrow.max and least <= smallest


def returned_numbers(joint: JointGraph) -> list[int]:
    """Return the positions of the numbers that inputs alone do not determine: the forward graph returns them."""
    return [at for at, node in enumerate(joint.numbers) if not _is_of_inputs(node)]


def _is_of_inputs(node: fx.Node) -> bool:
    if node.op == "placeholder":
        return True
    if node.target in LAYOUT_QUERIES:
        return node.all_input_nodes[0].op == "placeholder"
    return node.target in FUNCTIONS and all(map(_is_of_inputs, node.all_input_nodes))


def forward_graph(
    joint: JointGraph, results: Sequence[fx.Node] = (), in_backward: Collection[fx.Node] = ()
) -> fx.Graph:
    """Return the graph of the slots, numbers and `results`, then the writes to inputs; without nodes `in_backward`."""
    for index, value in enumerate(joint.written):
        if view_root(value).op == "placeholder":
            joint.written[index] = clone_node(joint, value)
    forward = fx.Graph()
    in_forward = [node for node in joint.graph.nodes if node not in in_backward]
    given = [*joint.slots, *(joint.numbers[at] for at in returned_numbers(joint)), *results]
    env = _copy_needed(joint.graph, forward, joint.inputs, [*given, *joint.written], in_forward)
    _mark_held(env[node] for node in joint.inputs)
    for index, value in zip(joint.meta.written, joint.written, strict=True):
        write = forward.call_function(aten.copy_.default, (env[joint.inputs[index]], env[value]))
        write.meta = dict(value.meta)
        write.meta["val"] = joint.inputs[index].meta["val"]
    forward.output(tuple(env[node] for node in given))
    return forward


def _mark_held(nodes: Iterable[fx.Node]) -> None:
    """Mark inputs of a graph that its callers hold: parameters, arguments, and the gradients that autograd gives."""
    for node in nodes:
        HELD.set(node, True)


def _copy_needed(
    graph: fx.Graph, into: fx.Graph, inputs: Iterable[fx.Node], outputs: Iterable[fx.Node], whole: Collection[fx.Node]
) -> dict[fx.Node, fx.Node]:
    """Copy the nodes that compute `outputs` from `inputs`, and every call of `whole` that must run unused."""
    env: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        env[node] = into.placeholder(node.name)
        env[node].meta = dict(node.meta)
    needed = {*outputs, *(node for node in whole if node.op == "call_function" and not is_removable(node))}
    for node in reversed(graph.nodes):
        if node in needed and node not in env:
            needed.update(node.all_input_nodes)
    for node in graph.nodes:
        if node in needed and node not in env:
            env[node] = into.node_copy(node, env.__getitem__)
    return env
