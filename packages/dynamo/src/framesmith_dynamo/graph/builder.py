"""The FX graph under construction: inputs, calls run on fake tensors, state changes, outputs.

It knows tensors and nodes, not values: a `TensorRef` pairs a fake tensor with its node, and values hold refs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from framesmith_aten.assumptions import Asserted, assumed
from framesmith_aten.checks.overlaps import Overlaps, Part
from framesmith_aten.checks.plain_tensors import with_bits_of
from framesmith_aten.failures import composite_may_fail
from framesmith_aten.fakes import new_fake_mode, python_kernels
from framesmith_aten.graphs.control_flow import TensorLayout, invoke_subgraph, results_again
from framesmith_aten.graphs.modules import new_module
from framesmith_aten.graphs.numbers import ScalarNodes
from framesmith_aten.layouts import may_overlap, storage_id
from framesmith_aten.meta import (
    CHECKPOINT,
    EFFECTS,
    EXAMPLE,
    LOCATION,
    MODE_CHANGE,
    PART,
    REGION,
    Checkpoint,
    Effects,
    StepPart,
)
from framesmith_aten.nested import tensors_in
from framesmith_aten.operators import op_name
from framesmith_aten.recording import OperatorLog, effects_of, note_effects
from framesmith_aten.symbolic import has_symbols, is_symbolic
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.graph.finished import FinishedGraph, GraphInput, placeholder_name
from framesmith_dynamo.graph.fx_arguments import fx_arguments
from framesmith_dynamo.graph.modes import GlobalStateLog
from framesmith_dynamo.graph.regions import RegionCall, held_body, new_body, share_regions
from framesmith_guards import Location, current_location, lines_forgotten
from framesmith_guards.symbolic_guards import notes_of
from framesmith_guards.torch_adapter import aten

if TYPE_CHECKING:
    from framesmith_guards import Source
    from framesmith_guards.torch_adapter import FakeTensorMode, TorchDispatchMode


ESCAPED = register_break(
    "body-tensor-escapes",
    what="a tensor that a function under a transform, such as torch.vmap, or the forward of a torch.autograd.Function "
    "has computed is used outside of the function",
    why="it is part of a graph within the graph, which gives what the function returns",
    hint="return the tensor from the function",
)
CHANGED_AFTER = register_break(
    "checkpoint-input-changed",
    what="a tensor that a checkpointed function has read is changed in place",
    why="the backward pass computes the function again, with the tensor as it is then",
    hint="use the operation that returns a new tensor",
)


class TensorRef:
    """A tensor of the trace: its fake, and the graph node that computes it.

    `real` and `source` are set for graph inputs, whose placeholder node is created by the first use of `node`.
    """

    __slots__ = ("_node", "builder", "fake", "is_cut", "real", "source", "spec")

    def __init__(
        self,
        builder: GraphBuilder,
        fake: torch.Tensor,
        node: fx.Node | None = None,
        *,
        real: torch.Tensor | None = None,
        source: Source | None = None,
    ) -> None:
        self.builder = builder
        self.fake = fake
        self._node = node
        self.is_cut = False
        self.real = real
        self.source = source
        self.spec = state_of(fake) if source is not None else None

    @property
    def node(self) -> fx.Node:
        """The node that computes this tensor; for an input, the first access creates the placeholder."""
        if self.is_cut:
            raise GraphBreak(ESCAPED)
        if self._node is None:
            self._node = self.builder.add_placeholder(self)
        return self._node

    def forget_in(self, nodes: Container[fx.Node]) -> None:
        """Forget the node if it is among these, which have left the graph: the tensor cannot be used any more."""
        if self._node in nodes:
            self._node, self.is_cut = None, True

    @property
    def is_used(self) -> bool:
        """Whether a node exists."""
        return self._node is not None

    def is_mutated(self) -> bool:
        """Whether the traced program changed this input's data or metadata in place."""
        if self.spec is None:
            return False
        if self.spec != state_of(self.fake):
            return True
        return any(may_overlap(self.fake, one) for one in self.mutated_parts())

    def mutated_parts(self) -> Sequence[torch.Tensor]:
        """The parts of its storage that the traced program wrote to, even if they have no elements."""
        return () if self.fake.layout is not torch.strided else self.builder.writes.get(storage_id(self.fake), ())


class NumberRef:
    """A number of the trace known only at run time: its symbol, and the graph node that computes it.

    `source` is set for graph inputs, whose placeholder node is created by the first use.
    """

    __slots__ = ("builder", "number", "source")

    def __init__(self, builder: GraphBuilder, number: Any, source: Source | None = None) -> None:
        self.builder = builder
        self.number = number
        self.source = source

    @property
    def node(self) -> Any:
        """The node that computes the number, or the number itself once it is specialised."""
        return self.builder.numbers.node_of(self.number)


def state_of(fake: torch.Tensor) -> tuple[Any, ...]:
    """The metadata of a tensor that an in-place operation can change."""
    strides = fake.stride() if fake.layout is torch.strided else ()
    return (tuple(fake.shape), strides, fake.requires_grad, fake.dtype)


class GraphBuilder:
    """The builder of one graph. It runs all tensor computation of the trace, on fakes of one fake mode."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.fake_mode = new_fake_mode()
        self.inputs: list[TensorRef] = []
        #: Numbers among the inputs, after the tensors; and the nodes of all numbers.
        self.number_inputs: list[tuple[fx.Node, NumberRef]] = []
        self.number_refs: dict[Any, NumberRef] = {}
        self.numbers = ScalarNodes(self.graph, EXAMPLE.name)
        self.refs: dict[int, TensorRef] = {}
        self.state = GlobalStateLog()
        #: For each operation, whether an inlined function made it.
        self._inlined: list[bool] = []
        #: The count of numbers computed in the graph.
        self.computed = 0
        #: The count of runtime assertions, including those removed since.
        self.assumptions = 0
        #: The fakes written to so far, by storage.
        self.writes: dict[int, list[torch.Tensor]] = {}
        #: Views of symbolic sizes, and their bases.
        self.parts: list[Part] = []
        self.overlaps = Overlaps(self.parts)
        #: Leaves that are inputs, or views of inputs, taken without gradients.
        self.leaf_views: list[torch.Tensor] = []
        #: Whether some operation that computes tensors can fail on its data.
        self.may_fail = False
        #: Whether some operation has effects outside of tensors.
        self.has_external_effects = False
        #: Whether an input was changed in a way that cannot be rolled back.
        self.is_irreversible = False
        #: Subgraphs that nodes of this graph hold, by attribute name.
        self.bodies: dict[str, fx.GraphModule] = {}
        #: The innermost checkpoint whose function is being traced, the count of checkpoints, and the storages of
        #: tensors that their functions read and have not made.
        self.checkpoint: Checkpoint | None = None
        self._checkpoints = 0
        #: The part of a training step that is being traced, where it is known.
        self.part: StepPart | None = None
        self._recomputed_from: set[int] = set()
        #: The outermost call of a nested compile region that is being traced, and the count of such calls.
        self._region: int | None = None
        self._regions = 0
        #: The names of bodies that later calls of regions use already, by what equal calls have in common.
        self._region_bodies: dict[Hashable, str] = {}

    # Inputs

    def add_input(self, real: torch.Tensor, source: Source, fake: torch.Tensor | None = None) -> TensorRef:
        """Return the ref of a real tensor, whose placeholder is created on first use. `fake`: one with symbols."""
        if fake is None:
            fake = self.fake_mode.from_tensor(real, static_shapes=True)
        ref = TensorRef(self, fake, real=real, source=source)
        self.refs[id(fake)] = ref
        self._record_layout(ref)
        return ref

    def _record_layout(self, ref: TensorRef) -> None:
        """Create refs for the numbers of a tensor's layout."""
        if has_symbols(ref.fake):
            self.numbers.offer_layout(ref.fake, lambda: ref.node, guarded=ref.source is not None)

    def number_ref(self, number: Any) -> NumberRef:
        """Return the ref of a symbolic number of this trace."""
        return self.number_refs.setdefault(number.node.expr, NumberRef(self, number))

    def add_number(self, number: Any, source: Source) -> NumberRef:
        """Return the ref of a symbolic number found at `source`, whose placeholder is created on first use."""
        ref = NumberRef(self, number, source)
        self.numbers.offer(number, partial(self._number_placeholder, ref))
        return ref

    def _number_placeholder(self, ref: NumberRef) -> fx.Node:
        assert ref.source is not None
        last = next((node for node in reversed(self.graph.nodes) if node.op == "placeholder"), None)
        with self.graph.inserting_after(last) if last is not None else self.graph.inserting_before(None):
            node = self._located(self.graph.placeholder(placeholder_name(ref.source.name)))
        EXAMPLE.set(node, ref.number)
        self.number_inputs.append((node, ref))
        return node

    def compute_number(self, function: Any, operands: Sequence[Any], number: Any) -> None:
        """Define a symbolic number as the result of a function of other numbers when the graph runs."""
        nodes = tuple(self.numbers.node_of(one) if is_symbolic(one) else one for one in operands)
        node = self._located(self.graph.call_function(function, nodes))
        EXAMPLE.set(node, number)
        self.numbers.bind(number, node)
        self.computed += 1

    def is_input(self, fake: torch.Tensor) -> bool:
        """Whether a fake stands for a tensor that existed before the graph ran."""
        ref = self.refs.get(id(fake))
        return ref is not None and ref.source is not None

    def is_view_of_input(self, fake: torch.Tensor) -> bool:
        """Whether a fake shares memory with a tensor that existed before the graph ran."""
        base = fake._base
        return base is not None and any(ref.fake is base or ref.fake._base is base for ref in self.inputs)

    def add_placeholder(self, ref: TensorRef) -> fx.Node:
        """Add an input to the graph, after the existing placeholders."""
        assert ref.source is not None
        where = self.graph.inserting_after(self.inputs[-1].node) if self.inputs else self.graph.inserting_before(None)
        with where:
            node = self._located(self.graph.placeholder(placeholder_name(ref.source.name)))
        EXAMPLE.set(node, ref.fake)
        self.inputs.append(ref)
        self.overlaps.note_input(ref.fake, ref.real)
        return node

    # Operations

    def new_log(self) -> OperatorLog:
        """Return a log for `run`."""
        notes = notes_of(self.fake_mode.shape_env)
        return OperatorLog(None if notes is None else notes.presumed)

    def run(
        self, log: TorchDispatchMode, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run a call on fakes and return its fake result; the log, a torch mode, records its operators.

        Exceptions of the operation pass through, with nothing recorded. Call `check_assumptions` first.
        """
        with self.fake_mode, log, python_kernels(self.fake_mode):
            return call(*args, **kwargs)

    def record(
        self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, effects: Effects
    ) -> fx.Node:
        """Return a node for a call that was run; its arguments hold nodes.

        Raises TraceUnsupported and NotExpressible where a graph cannot hold the call. `meta[EFFECTS]` of the node
        describes its operators, `meta[LOCATION]` is its location in the user's program.
        """
        if effects.written:
            fakes = (fake for node in nodes_in(args, kwargs) for fake in tensors_in(fake_of_node(node)))
            storages = {storage_id(fake) for fake in fakes if fake.layout is torch.strided}
            effects.written = [one for one in effects.written if storage_id(one) in storages]
        out = nodes_in((kwargs["out"],), {}) if "out" in kwargs else ()
        note_effects(
            self.overlaps, op_name(target), effects, [one for node in out for one in tensors_in(fake_of_node(node))]
        )
        for changed in effects.written if self._recomputed_from else ():
            if changed.layout is torch.strided and storage_id(changed) in self._recomputed_from:
                raise GraphBreak(CHANGED_AFTER, op_name(target))
        said_args, said_kwargs = fx_arguments((tuple(args), dict(kwargs)))
        self.overlaps.note(result)
        kind = "call_method" if isinstance(target, str) else "call_function"
        node = self._located(self.graph.create_node(kind, target, said_args, said_kwargs))
        EXAMPLE.set(node, result)
        self._note(node, effects)
        return node

    @property
    def has_assumed(self) -> bool:
        """Whether the last call has made assumptions about unbacked numbers that are not asserted yet."""
        env = self.fake_mode.shape_env
        return env is not None and env.num_deferred_runtime_asserts != self.assumptions

    def check_assumptions(self, by: Asserted = Asserted.OPERATOR, text: str | None = None) -> None:
        """Add runtime assertions for the assumptions about unbacked numbers made since the last call of this method.

        Assumptions about numbers that no node computes are internal to one operation, which checks them itself.
        """
        env = self.fake_mode.shape_env
        if env is None or not self.has_assumed:
            return
        self.assumptions = env.num_deferred_runtime_asserts
        for asserted in env.deferred_runtime_asserts.values():
            for each in [one for one in asserted if self.numbers.knows_expression(one.expr)]:
                self._assert(each.expr, text or f"{each.expr}, of numbers known at run time", by)
            asserted.clear()

    def _assert(self, condition: Any, message: str, by: Asserted) -> None:
        operand = self.numbers.of_expression(condition)
        if by is not Asserted.PROGRAM:
            at = current_location()
            message = assumed(message if at is None else f"{message} ({at.in_user_code})", by)
        node = self._located(self.graph.call_function(aten._assert_scalar.default, (operand, message)))
        EXAMPLE.set(node, None)
        self._note(node, Effects(irreversible=True, may_fail=True))

    def _note(self, node: fx.Node, effects: Effects) -> None:
        """Record the effects of a call on tensors older than itself."""
        effects.may_fail |= composite_may_fail(op_name(node.target))
        EFFECTS.set(node, effects)
        for one in effects.written:
            if one.layout is torch.strided:
                self.writes.setdefault(storage_id(one), []).append(one)
        self.may_fail |= effects.may_fail and not effects.external
        self.has_external_effects |= effects.external
        location = LOCATION.get(node)
        self._inlined.append(location is not None and location.outer is not None)

    @property
    def operations(self) -> int:
        """The number of operations recorded, including those moved into subgraphs."""
        return len(self._inlined)

    def has_inlined(self, start: int, end: int) -> bool:
        """Whether inlined functions made some of these operations."""
        return any(self._inlined[start:end])

    # Checkpoints

    def new_checkpoint(self, saves: Callable[..., bool] | None, reentrant: bool) -> Checkpoint:
        """Return the record of a checkpoint in the present one."""
        self._checkpoints += 1
        return Checkpoint(self._checkpoints, self.checkpoint, saves, reentrant)

    @contextmanager
    def within(self, checkpoint: Checkpoint) -> Iterator[None]:
        """Inside, operations are recorded as those of a checkpoint."""
        around, self.checkpoint = self.checkpoint, checkpoint
        try:
            yield
        finally:
            self.checkpoint = around

    @contextmanager
    def recording_part(self, part: StepPart | None) -> Iterator[None]:
        """Inside, operations are recorded as those of a part of a training step."""
        around, self.part = self.part, part
        try:
            yield
        finally:
            self.part = around

    @staticmethod
    def is_within(checkpoint: Checkpoint) -> Callable[[fx.Node], bool]:
        """Return whether nodes are operations of a checkpoint, or of one in it."""
        return lambda node: checkpoint in (one.outwards() if (one := CHECKPOINT.get(node)) is not None else ())

    def recomputed_from(self, fakes: Iterable[torch.Tensor]) -> None:
        """Note what a checkpoint is recomputed from: a later operation that changes one of these breaks the graph."""
        self._recomputed_from.update(storage_id(fake) for fake in fakes if fake.layout is torch.strided)

    @property
    def has_checkpoints(self) -> bool:
        """Whether a checkpointed function was traced."""
        return self._checkpoints > 0

    @property
    def is_in_region(self) -> bool:
        """Whether a call of a nested compile region is being traced."""
        return self._region is not None

    @contextmanager
    def in_region(self) -> Iterator[None]:
        """Inside, operations are recorded as those of one call of a nested compile region."""
        around = self._region
        if around is None:
            self._regions += 1
            self._region = self._regions
        try:
            yield
        finally:
            self._region = around

    def region_body(self, call: RegionCall) -> str:
        """Return the name of a body for calls equal to this one."""
        key = call.key(self.bodies)
        name = self._region_bodies.get(key)
        if name is None:
            name = self._region_bodies[key] = new_body(self.bodies, call)
        return name

    def call_body(
        self, name: str, operands: Sequence[fx.Node], results: Sequence[TensorLayout], effects: Effects
    ) -> list[TensorRef]:
        """Record a call of a body and return its results, new tensors of these layouts."""
        with self.fake_mode:
            fakes = results_again(results, [*map(fake_of_node, operands)])
        held = held_body(self.graph, self.bodies, name)
        node = self.record(invoke_subgraph, (held, *operands), {}, fakes, effects)
        return [self.ref(fake, self.item(node, index, fake)) for index, fake in enumerate(fakes)]

    def _located(self, node: fx.Node) -> fx.Node:
        """Return `node` with its location in the user's program, and the checkpoint, region and part that make it."""
        if node.op not in ("placeholder", "output"):
            if self.checkpoint is not None:
                CHECKPOINT.set(node, self.checkpoint)
            if self._region is not None:
                REGION.set(node, self._region)
            if self.part is not None:
                PART.set(node, self.part)
        location = current_location()
        if location is not None:
            LOCATION.set(node, location)
        return node

    def item(self, node: fx.Node, index: int | str, fake: torch.Tensor) -> fx.Node:
        """Return the node for one tensor of a call's tuple, list or dict result."""
        got = self._located(self.graph.call_function(operator.getitem, (node, index)))
        EXAMPLE.set(got, fake)
        EFFECTS.set(got, Effects())
        return got

    def ref(self, fake: torch.Tensor, node: fx.Node) -> TensorRef:
        """Return the ref of a result; that of an earlier tensor if an operation returned it (in place)."""
        known = self.refs.get(id(fake))
        if known is None:
            known = self.refs[id(fake)] = TensorRef(self, fake, node)
            self._record_layout(known)
        return known

    def number(self, number: Any, node: fx.Node) -> None:
        """Record a number that a call returned."""
        self.numbers.bind(number, node)

    def emit_state(self, target: Any, args: Sequence[Any]) -> Any:
        """Record a change of torch's global state, and make it."""
        node_args = tuple(self.state.node_of(arg) for arg in args)
        result = target(*args)
        node = self._switch(target, node_args)
        self.state.record(target, args, result, node)
        return result

    def _switch(self, target: Any, args: Sequence[Any]) -> fx.Node:
        node = self._located(self.graph.call_function(target, tuple(args)))
        MODE_CHANGE.set(node, True)
        EFFECTS.set(node, Effects(irreversible=True))
        return node

    def finish(self, outputs: Sequence[TensorRef | NumberRef]) -> FinishedGraph | None:
        """End the graph: restore state, add outputs, remove dead code. None when nothing is left to compute."""
        self.check_assumptions()
        for target, args in self.state.closing_calls():
            self._switch(target, args)
        self._located(self.graph.output(tuple(ref.node for ref in outputs)))
        self.remove_dead_code()
        if self._regions > 1 or self._region_bodies:
            share_regions(self.graph, self.bodies, self._region_bodies)
        if all(node.op in ("placeholder", "output") for node in self.graph.nodes) and not outputs:
            return None
        used = [ref for ref in self.inputs if ref.is_used]
        inputs = [describe_input(ref, fake) for ref, fake in zip(used, self.examples(used), strict=True)]
        inputs += [GraphInput(ref.source, ref.number) for _, ref in self.number_inputs if ref.source is not None]
        mutated = [position for position, ref in enumerate(used) if ref.is_mutated()]
        stacks: dict[Location, str] = {}
        with lines_forgotten():
            for node in self.graph.nodes:
                if LOCATION.on(node):
                    node.meta["stack_trace"] = LOCATION.of(node).stack_text(stacks)
        return FinishedGraph(new_module(dict(self.bodies), self.graph), inputs, mutated)

    def erase(self, node: fx.Node) -> None:
        """Remove a node from the graph. FX keeps its name for the graph's lifetime; its metadata is dropped here."""
        self.graph.erase_node(node)
        node.meta.clear()

    def remove_dead_code(self) -> None:
        """Remove unused operations without effects, then unused placeholders."""
        for node in reversed(list(self.graph.nodes)):
            if node.users or node.op == "output" or effects_of(node).forbid_removal:
                continue
            self.erase(node)
        live = {node for node in self.graph.nodes if node.op == "placeholder"}
        self.inputs = [ref for ref in self.inputs if ref.node in live]
        self.number_inputs = [(node, ref) for node, ref in self.number_inputs if node in live]

    def examples(self, refs: Sequence[TensorRef]) -> list[torch.Tensor]:
        """Return fakes of the inputs in their state before the trace."""
        if not any(ref.is_mutated() or ref.mutated_parts() for ref in refs):
            return [ref.fake for ref in refs]
        mode = new_fake_mode()
        mode.shape_env = self.fake_mode.shape_env
        return [_as_before(mode, ref) for ref in refs]


def _as_before(mode: FakeTensorMode, ref: TensorRef) -> torch.Tensor:
    """Return a fake of an input in its state before the trace."""
    assert ref.real is not None
    assert ref.spec is not None
    shape, strides, requires_grad, dtype = ref.spec
    if not any(map(is_symbolic, (*shape, *strides))):
        return mode.from_tensor(ref.real, static_shapes=True)
    with mode, torch.inference_mode(ref.real.is_inference()), torch.enable_grad():
        made = torch.empty_strided(shape, strides, dtype=dtype, device=ref.fake.device)
        leaf = with_bits_of(made, ref.fake).requires_grad_(requires_grad)
        if ref.real.is_leaf:
            return leaf
        made = torch.empty_strided(shape, strides, dtype=dtype, device=ref.fake.device)
        return with_bits_of(made, ref.fake).copy_(leaf)


def fake_of_node(node: fx.Node) -> Any:
    """Return the result of a node on fakes."""
    return EXAMPLE.of(node)


def nodes_in(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[fx.Node]:
    """Return all nodes among the arguments, nested containers included."""
    found: list[fx.Node] = []
    fx.node.map_arg((tuple(args), dict(kwargs)), found.append)
    return found


def describe_input(ref: TensorRef, example: torch.Tensor) -> GraphInput:
    """Return the record of an input for the compiler."""
    assert ref.source is not None
    return GraphInput(ref.source, example)
