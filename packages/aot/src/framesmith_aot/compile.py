"""`compile_graph`: a torch-level graph in, a function with eager mode's meaning out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx

from framesmith_aot.clock import PartClock
from framesmith_aot.errors import AotUnsupported
from framesmith_aot.partition.saved_values import Traced
from framesmith_aot.partition.split import Partition, forward_graph, partition
from framesmith_aot.runtime.autograd_node import autograd_node
from framesmith_aot.runtime.backward import BackwardPass, backward_graph
from framesmith_aot.runtime.codegen import FunctionText, argument_name
from framesmith_aot.runtime.compiled import CallModes, CallShape, CompiledGraph, inference_function
from framesmith_aot.runtime.derivatives.second_order import SecondOrder, second_order, why_not_replayable
from framesmith_aot.runtime.handover import compile_part
from framesmith_aot.runtime.numbers import numbers_at_calls
from framesmith_aot.runtime.training import training_function
from framesmith_aot.shared_bodies import trace_shared
from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace.backward import BackwardError
from framesmith_aot.trace.joint import Binding, JointGraph, trace_joint
from framesmith_aot.trace.numbers import assume_usual, specialise
from framesmith_aot.trace.prelude import Part, prelude_of
from framesmith_aten.checks.plain_tensors import is_inference_leaf, with_bits_of
from framesmith_aten.contract import Compiler, OnError, TransformStep
from framesmith_aten.fakes import fake_mode_of, new_fake_mode
from framesmith_aten.fakes.symbols import attach_shape_env
from framesmith_aten.graphs.autograd_calls import new_leaf
from framesmith_aten.graphs.nodes import view_source
from framesmith_aten.layouts import may_overlap, storage_id
from framesmith_aten.meta import EXAMPLE
from framesmith_aten.symbolic import is_data_dependent, is_symbolic
from framesmith_aten.tracing.decompositions import Lowers, lowers_nothing
from framesmith_guards.contexts import ambient
from framesmith_guards.torch_adapter import DynamicOutputShapeException, FakeTensor, FakeTensorMode


def compile_graph(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    compiler: Compiler,
    lowers: Lowers = lowers_nothing,
    training: bool | None = None,
    keep_input_mutations: bool = True,
    on_error: OnError | None = None,
    transform_step: TransformStep | None = None,
    memory_budget: float = 1.0,
    boxed: bool = False,
    late_traces: Callable[[], AbstractContextManager[Any]] = nullcontext,
    observe: Callable[[Traced], None] | None = None,
) -> CompiledGraph:
    """Compiles the flat torch-level graph `gm` for inputs like `inputs`: real or fake tensors, symbolic numbers.

    All symbols, sizes of fake tensors included, belong to one torch ShapeEnv; a call may have any sizes that the guards
    of that ShapeEnv allow once this returns. The result, called with run-time tensors and numbers of the same metadata,
    does what running `gm` eagerly does: values, strides, aliases, mutations, gradients; or it raises AssumptionFailed
    (`framesmith_aten.contract`), and the caller runs `gm`.

    `compiler` gets the ATen graphs (see `framesmith_aten.contract.Compiler`), the backward graph when a gradient is
    first asked for. `lowers(operator)`: the graphs may hold this operator undecomposed. `training`: whether gradients
    are wanted; None: when grad mode is on, or turned on by the graph, and an input requires them.
    `keep_input_mutations`: the compiler takes trailing `copy_` calls onto inputs. `on_error(what, error)` is called
    where a backward graph cannot be compiled, which then runs uncompiled; without it the backward pass raises.
    `transform_step` may rewrite a training step's graph before the partition. `memory_budget`, 0 to 1: the share of the
    bytes it would save for the backward pass by itself that may be saved; the rest is recomputed. `boxed`: the result's
    runner also has a `boxed` function, which frees inputs as they are used, unless gradients are wanted. `late_traces`
    is the context of traces that backward passes begin, those for second derivatives. `observe` gets each trace, once
    it is partitioned and before it is compiled.

    Raises AotUnsupported where the meaning cannot be preserved: run the graph eagerly then.
    """
    _refuse_modes()
    steps = Steps(
        compiler, lowers, keep_input_mutations, on_error, transform_step, memory_budget, boxed, late_traces, observe
    )
    parts = prelude_of(gm) if training is None else None
    if parts is not None:
        split = _compile_with_prelude(parts, inputs, partial(_compile, steps=steps), on_error)
        if split is not None:
            return split
    return _compile(gm, inputs, training=training, steps=steps)


@dataclass(frozen=True)
class Steps:
    """The parameters of `compile_graph` that have these names."""

    compiler: Compiler
    lowers: Lowers
    keep_input_mutations: bool
    on_error: OnError | None
    transform_step: TransformStep | None
    memory_budget: float
    boxed: bool
    late_traces: Callable[[], AbstractContextManager[Any]]
    observe: Callable[[Traced], None] | None


def _compile(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    training: bool | None,
    steps: Steps,
    simplify: Callable[[JointGraph], None] | None = None,
    gradients: bool = False,
    join_groups: bool = False,
) -> CompiledGraph:
    """Compile a graph as a whole.

    `simplify` changes the joint graph once it is known what a replay needs; `gradients`, `join_groups`: see
    `trace_joint`.
    """
    clock = None if steps.observe is None else PartClock()
    trace = partial(
        trace_joint,
        lowers=steps.lowers,
        keep_input_mutations=steps.keep_input_mutations,
        trace_shared=partial(trace_shared, memory_budget=steps.memory_budget),
        gradients=gradients,
        join_groups=join_groups,
        clock=clock,
    )
    joint, call, training = _joint(gm, inputs, training, trace)
    observe = None
    if steps.observe is not None and clock is not None:
        observe = partial(_observe, steps.observe, _names(gm, call), clock)
    if not joint.training:
        if simplify is not None:
            simplify(joint)
        if observe is not None:
            observe(joint)
        return _for_inference(joint, call, steps, training)
    second = why_not_replayable(gm, joint) or second_order(gm, call.binding, joint, call.examples)
    if simplify is not None:
        simplify(joint)
    if steps.transform_step is not None and (graph := steps.transform_step(joint.graph)) is not None:
        joint.take(graph)
    return _for_training(joint, call, steps, training, second, observe)


def _joint(
    gm: fx.GraphModule, inputs: Sequence[Any], training: bool | None, trace: Callable[..., JointGraph]
) -> tuple[JointGraph, _Arguments, bool]:
    """Return the joint graph, by `trace_joint` with some arguments; the arguments; whether gradients are wanted."""
    call = _arguments(gm, inputs)
    tensors = [value for value in call.examples if isinstance(value, torch.Tensor)]
    if training is None:
        leaves = gm.graph.find_nodes(op="call_function", target=new_leaf)
        training = _records(gm) and (bool(leaves) or any(value.requires_grad for value in tensors))
    if training and any(map(is_inference_leaf, tensors)):
        why = "operators differ in whether they record it"
        raise AotUnsupported("inference-leaf", "a gradient of a tensor made in inference mode", why)
    fake_mode = _fake_mode(gm, call.examples)
    fakes = [_as_fake(value, fake_mode) for value in call.examples]
    joint = _traced(partial(trace, gm, fakes, call.binding, fake_mode, training=training), fake_mode)
    _refuse_shared_memory(call.examples, joint)
    return joint, call, training


def joint_graph(gm: fx.GraphModule, inputs: Sequence[Any], lowers: Lowers = lowers_nothing) -> JointGraph:
    """Return the graph of the forward and the backward pass of `gm`, with the bodies of calls in place.

    Raises AotUnsupported for what `compile_graph` raises it.
    """
    _refuse_modes()
    return _joint(gm, inputs, None, partial(trace_joint, lowers=lowers, keep_input_mutations=False))[0]


def _names(gm: fx.GraphModule, call: _Arguments) -> list[str]:
    """Return the names of the graph's distinct inputs: of placeholders, and of tensors that the graph holds."""
    given = [node.name for node in gm.graph.find_nodes(op="placeholder")]
    held = {at: name for name, at in call.binding.attributes.items()}
    shown = dict(enumerate(given[argument] for argument in call.shape.source))
    return [shown.get(at) or held.get(at, "") for at in range(len(call.examples))]


def _observe(
    report: Callable[[Traced], None],
    names: Sequence[str],
    clock: PartClock,
    joint: JointGraph,
    parts: Partition | None = None,
    seconds: float = 0.0,
) -> None:
    report(Traced(joint, parts, names, clock.seconds, seconds))


def _compile_derivative(
    steps: Steps,
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    simplify: Callable[[JointGraph], None],
    join_groups: bool,
) -> Callable[..., Any]:
    """Return the function of a graph of first derivatives, which autograd differentiates again."""
    with steps.late_traces():
        _refuse_modes()
        compiled = _compile(
            gm, inputs, training=True, steps=steps, simplify=simplify, gradients=True, join_groups=join_groups
        )
        return compiled.function


def _compile_with_prelude(
    parts: tuple[Part, Part], inputs: Sequence[Any], compile: Callable[..., CompiledGraph], on_error: OnError | None
) -> CompiledGraph | None:
    """Return one function for the two `parts` of a graph, or None where one may fail half-way: see Note [Preludes]."""
    compiled = []
    for part, training in zip(parts, (False, True), strict=True):
        graph = compile(part.module, [inputs[at] for at in part.takes], training=training)
        if graph.runner.assumes or not graph.runner.rerunnable_after_error:
            return None
        compiled.append(graph)
    before, rest = compiled
    text = FunctionText("compiled_graph", [*map(argument_name, range(len(inputs)))])
    for part, graph, what, use in zip(parts, compiled, ("before", "behind"), ("", "return "), strict=True):
        names = ", ".join(map(argument_name, part.takes))
        text.line("try:")
        text.line(f"{use}{text.bind(what, graph.function)}({names})", 2)
        text.line("except Exception as error:")
        text.line(f"{text.bind('report', partial(_report, on_error))}(error)", 2)
        text.line(f"{use}{text.bind(f'plain_{what}', part.module.forward)}({names})", 2)
    written = {part.takes[at] for part, graph in zip(parts, compiled, strict=True) for at in graph.overwritten}
    whole_text = "\n".join((before.text, rest.text, text.text))
    overwritten = tuple(sorted(written))
    return CompiledGraph(
        text.build(),
        whole_text,
        rest.forward_graph,
        rest.backward_passes,
        overwritten,
        parts=(*before.parts, *rest.parts),
        rerunnable_after_error=False,
    )


def _report(on_error: OnError | None, error: Exception) -> None:
    if on_error is None:
        raise error
    on_error("a part of a graph", error)


def _traced(trace: Callable[[], JointGraph], fake_mode: FakeTensorMode) -> JointGraph:
    """Return the joint graph, traced again as long as a formula of torch asks for another symbol's value."""
    captured = frozenset(() if fake_mode.shape_env is None else fake_mode.shape_env.var_to_range)
    specialised: set[Any] = set()
    while True:
        try:
            return trace()
        except AotUnsupported as error:
            cause: Any = error.__cause__
            if is_data_dependent(cause):
                if not assume_usual(cause, fake_mode, captured):
                    raise
            elif not isinstance(error, BackwardError):
                raise
            elif isinstance(cause, DynamicOutputShapeException) and fake_mode.shape_env is None:
                attach_shape_env(fake_mode)  # only the backward pass has unbacked lengths
            # Torch's formulas for powers ask for the exponent.
            elif not specialise(error.numbers, specialised):
                raise


def _fake_mode(gm: fx.GraphModule, examples: Sequence[Any]) -> FakeTensorMode:
    """Return the mode of the fakes among the examples, or a new one with the graph's ShapeEnv."""
    mode = fake_mode_of(examples)
    if mode is not None:
        return mode
    mode = new_fake_mode()
    met = (examples, *(EXAMPLE.get(node) for node in gm.graph.nodes))
    mode.shape_env = next((env for value in met if (env := _shape_env(value)) is not None), None)
    return mode


def _shape_env(value: Any) -> Any:
    """Return the torch ShapeEnv of the first symbol in a nested value, or None."""
    for leaf in unstable.tree_leaves(value):
        if is_symbolic(leaf):
            return leaf.node.shape_env
        if isinstance(leaf, FakeTensor) and leaf.fake_mode.shape_env is not None:
            return leaf.fake_mode.shape_env
    return None


def _records(gm: fx.GraphModule) -> bool:
    """Whether autograd records anywhere in the graph: never in inference mode."""
    if torch.is_inference_mode_enabled():
        return False
    return torch.is_grad_enabled() or any(
        node.target is unstable.set_grad_enabled and node.args[0] is True for node in gm.graph.nodes
    )


@dataclass(frozen=True)
class _Arguments:
    """The graph's distinct inputs: the tensors and numbers passed in, then the tensors held as attributes."""

    examples: list[Any]
    binding: Binding
    shape: CallShape


def _arguments(gm: fx.GraphModule, inputs: Sequence[Any]) -> _Arguments:
    placeholders = len(gm.graph.find_nodes(op="placeholder"))
    if placeholders != len(inputs):
        raise ValueError(f"the graph takes {placeholders} inputs, {len(inputs)} examples were given")
    examples: list[Any] = []
    where: dict[int, int] = {}
    positions: list[int] = []
    source: list[int] = []
    for argument, value in enumerate(inputs):
        if not is_symbolic(value):
            _check_input(value, f"input {argument}")
        if id(value) not in where:
            where[id(value)] = len(examples)
            examples.append(value)
            source.append(argument)
        positions.append(where[id(value)])
    binding = Binding(positions, {}, {})
    constants = _bind_attributes(gm, binding, where, examples)
    return _Arguments(examples, binding, CallShape(len(inputs), tuple(source), tuple(constants)))


def _bind_attributes(
    gm: fx.GraphModule, binding: Binding, where: dict[int, int], examples: list[Any]
) -> list[torch.Tensor]:
    """Fill in the attributes of `binding`; return the tensors among them, which become inputs."""
    constants: list[torch.Tensor] = []
    for node in gm.graph.nodes:
        if node.op != "get_attr":
            continue
        name = str(node.target)
        value: Any = gm
        for part in name.split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            binding.values[name] = value
            continue
        if id(value) not in where:
            _check_input(value, f"attribute {name}")
            where[id(value)] = len(examples)
            examples.append(value)
            constants.append(value)
        binding.attributes[name] = where[id(value)]
    return constants


def _check_input(value: Any, what: str) -> None:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{what} must be a tensor or a symbolic number, got {type(value).__name__}")
    plain = isinstance(value, (FakeTensor, torch.nn.Parameter)) or type(value) is torch.Tensor
    if not plain:
        raise AotUnsupported("subclass", f"{what} of type {type(value).__name__}", "subclasses are not unwrapped")
    if value.layout is not torch.strided or value.is_quantized:
        raise AotUnsupported("layout", f"{what} of layout {value.layout}", "only strided tensors are traced")
    if unstable.is_functorch_wrapped_tensor(value):
        raise AotUnsupported("functorch", what, "a functorch transform has wrapped it")


def _refuse_modes() -> None:
    """Raise AotUnsupported under a user's dispatch mode, which would not see the operators of a compiled graph."""
    for mode in unstable.get_current_dispatch_mode_stack():
        if not isinstance(mode, FakeTensorMode):
            raise AotUnsupported("dispatch-mode", type(mode).__name__, "it would not see the operators of the graph")


def _as_fake(value: Any, fake_mode: FakeTensorMode) -> Any:
    """Return a fake of a tensor, a normal one: inference tensors could not be mutated outside inference mode."""
    if is_symbolic(value):
        return value
    fake = value if isinstance(value, FakeTensor) else fake_mode.from_tensor(value, static_shapes=True)
    if not fake.is_inference():
        return fake
    with torch.inference_mode(False), fake_mode:
        twin = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
        return with_bits_of(twin, fake).requires_grad_(fake.requires_grad)


def _refuse_shared_memory(examples: Sequence[Any], joint: JointGraph) -> None:
    """Raise AotUnsupported for a mutated input that overlaps another: functional values would miss the overlap."""
    if not joint.meta.mutated:
        return
    by_storage: dict[int, list[int]] = {}
    for index, example in enumerate(examples):
        if isinstance(example, torch.Tensor) and example.layout is torch.strided:
            by_storage.setdefault(storage_id(example), []).append(index)
    for index in joint.meta.mutated:
        others = by_storage.get(storage_id(examples[index]), ()) if examples[index].layout is torch.strided else ()
        if any(may_overlap(examples[index], examples[other]) for other in others if other != index):
            raise AotUnsupported("aliased-inputs", f"input {index}", "it is mutated and overlaps another in memory")


def _call_modes(joint: JointGraph, training: bool, forward: fx.Graph) -> CallModes:
    """Return the modes to set around the graph where they differ from those of the call."""
    results: Any = next(iter(reversed(forward.nodes))).args[0]
    views = any(view_source(result) is not None for result in results[: len(joint.slots)])
    state = ambient.read()
    switch_grad = state.grad is not joint.training and any(one.requires_grad for one in joint.meta.inputs)
    record = training and not state.grad
    return CallModes(
        joint.training if switch_grad else None, state.any_autocast, record, views or bool(joint.meta.written)
    )


def _overwritten(joint: JointGraph, call: _Arguments) -> tuple[int, ...]:
    sources = call.shape.source
    return tuple(sources[index] for index in joint.meta.mutated if index < len(sources))


def _for_inference(joint: JointGraph, call: _Arguments, steps: Steps, training: bool) -> CompiledGraph:
    graph = forward_graph(joint)
    run = compile_part(dict(joint.attributes), graph, steps.compiler, "inference")
    modes = _call_modes(joint, training, graph)
    text = inference_function(run, joint.meta, call.shape, modes, numbers_at_calls(joint), boxed=steps.boxed)
    return CompiledGraph(
        text.build(), text.text, graph, (), _overwritten(joint, call), parts=(joint.meta,), boxed=steps.boxed
    )


def _for_training(
    joint: JointGraph,
    call: _Arguments,
    steps: Steps,
    training: bool,
    second: SecondOrder | str,
    observe: Callable[[JointGraph, Partition, float], None] | None = None,
) -> CompiledGraph:
    root = dict(joint.attributes)
    overwritten = _overwritten(joint, call)
    begun = time.perf_counter()
    parts = partition(joint, steps.memory_budget)
    if observe is not None:
        observe(joint, parts, time.perf_counter() - begun)
    modes = _call_modes(joint, training, parts.forward)
    passes = [BackwardPass(backward_graph(part), root, steps.compiler, steps.on_error) for part in parts.parts]
    nodes = [
        autograd_node(
            part, backward, joint.meta, second, parts.forward, partial(_compile_derivative, steps), steps.on_error
        )
        for part, backward in zip(parts.parts, passes, strict=True)
    ]
    run = compile_part(root, parts.forward, steps.compiler, "forward")
    numbers = numbers_at_calls(joint)
    text, node_texts = training_function(run, joint.meta, call.shape, modes, nodes, second, numbers)
    whole_text = "\n".join(each.text for each in (*node_texts, text))
    return CompiledGraph(text.build(), whole_text, parts.forward, tuple(passes), overwritten, parts=(joint.meta,))
