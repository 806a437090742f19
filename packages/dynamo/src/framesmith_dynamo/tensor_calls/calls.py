"""Calls of torch: values become graph arguments, fakes are run, results become values."""

from __future__ import annotations

import logging
import operator
import threading
from collections.abc import Mapping, Sequence
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from torch import fx

from framesmith_aten.checks.ignored_warnings import without_warnings
from framesmith_aten.checks.overlaps import OUTSIDE_VIEW, OVERLAPPING_MUTATION, READ_LATE
from framesmith_aten.checks.plain_tensors import SPARSE_GRADIENT
from framesmith_aten.checks.rng_order import RNG_ORDER
from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.fakes import is_defect, is_memory_read
from framesmith_aten.graphs.autograd_calls import new_leaf
from framesmith_aten.graphs.transforms import PullBack
from framesmith_aten.layouts import storage_id
from framesmith_aten.nested import tensors_in
from framesmith_aten.recording import LOST_RESULT, VIEW_OR_COPY, KernelRefuses, RecordingFailed, effects_of
from framesmith_aten.symbolic import is_symbolic
from framesmith_aten.tensor_methods import concerns_pinning
from framesmith_dynamo.breaks import BREAKS, DATA_DEPENDENT, BreakKind, GraphBreak, register_break
from framesmith_dynamo.graph.builder import fake_of_node
from framesmith_dynamo.graph.fx_arguments import NotExpressible
from framesmith_dynamo.tensor_calls.ordered_effects import EFFECT_READS, placed_after_graph, writes_too_early
from framesmith_dynamo.tensor_calls.rollback import changed_histories, check_rollback, guard_change
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.containers import NamedTupleValue, TupleValue, new_dict, new_list
from framesmith_dynamo.values.higher_order.derivatives.pullbacks import PullBackValue
from framesmith_dynamo.values.tensors.scalar_tensors import forget_written
from framesmith_dynamo.values.tensors.set_data import SHARED_DATA, breaks_sharing
from framesmith_dynamo.values.tensors.storage_offsets import guarded_offsets
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_dynamo.values.tensors.tensor_tables import AUTOGRAD_STATE, DYNAMIC_OUTPUT_SHAPE, HOOKED
from framesmith_guards import called_from
from framesmith_guards.torch_adapter import FakeTensor, FakeTensorMode, GuardOnDataDependentSymNode

if TYPE_CHECKING:
    from framesmith_aten.meta import Effects
    from framesmith_dynamo.graph.builder import GraphBuilder
    from framesmith_dynamo.trace_state import TraceState
    from framesmith_guards import Location


class TracingFrame(Tracer, Protocol):
    """The interface of the frame that makes a call."""

    @property
    def state(self) -> TraceState:
        """The state shared by all frames of the trace."""

    def location(self) -> Location:
        """The frame's location in the user's program."""


OPERATION_FAILED = register_break(
    "operation-failed",
    what="a tensor operation raises an error",
    why="the operation was tried on fake tensors of the same dtypes and shapes and refused them",
    hint="look at the error; in eager mode the same call raises it too",
)
FAKE_UNSUPPORTED = register_break(
    "no-fake-rule",
    what="a tensor operation cannot be run on fake tensors",
    why="torch has no meta kernel for it, or it reads data outside torch",
    hint="register a fake implementation with torch.library.register_fake",
)
MEMORY_READ = register_break(
    "memory-read",
    what="an operator reads a tensor's elements on the host (lengths, offsets, data of a library's own kernel)",
    why="it does so as soon as it is called, and fake tensors have no memory",
    hint="the call runs eagerly between two graphs; register an operator of your own with a fake implementation",
)
STRANGE_RESULT = register_break(
    "strange-result",
    what="a torch function returned something that is no tensor, number or container of them",
    why="the graph holds tensors only",
    hint="call the function outside the compiled region",
)

ARGUMENT_WITHOUT_TEXT = register_break(
    "argument-without-text",
    what="a tensor operation takes a function, a class or another object of which a graph's source has no text",
    why="the graph is Python source, and its arguments are tensors, numbers, strings and torch's own constants",
    hint="give a dtype, a string or a number; call the operation outside of the compiled function",
)
EAGER_REFUSES = register_break(
    "refused-on-real-data",
    what="a tensor operation that torch refuses although fake tensors took it",
    why="its kernel has no such dtype, writes to memory it also reads, or takes a number that its dtype cannot hold",
    hint="look at the error: in eager mode the same call raises it too",
)
UNTRACED_WRITES = register_break(
    "custom-mutation",
    what="a custom operator writes to its arguments in a way that a graph cannot express",
    why="another argument shows the memory, autograd may want to know of it, or the result shows an argument's memory",
    hint="give the operator a copy; call it without gradients; return new tensors",
)
register_break(
    OVERLAPPING_MUTATION,
    what="an operation writes to memory that a view shows more than once, or unfolds",
    why="in a graph a view is made again after a write; the copies of an element would be ambiguous, "
    "and so would the elements that an "
    "unfolded view omits",
    hint="write to a copy of the expanded or unfolded view, or before the view is taken",
)
register_break(
    OUTSIDE_VIEW,
    what="an input is changed, and a view by strides shows memory around it, or the change is made through one",
    why="a graph computes with the contents of its inputs, which do not show that memory",
    hint="make the view of the whole tensor that owns the memory",
)
register_break(
    READ_LATE,
    what="an operation writes to memory that it reads at another element",
    why="the result depends on the order in which torch's kernel visits the elements",
    hint="give the operation a clone of the tensor that it reads",
)
register_break(
    LOST_RESULT,
    what="a call with `out=` does not write there while it is traced",
    why="some functions of torch return another tensor where a mode is active; a graph would not have the result",
    hint="use the result of the call without `out=`",
)
register_break(
    VIEW_OR_COPY,
    what="an operation gives a view for some sizes and a copy for others, and the sizes are unbacked",
    why="a write to a view changes its base, and a graph has to be compiled for one of the two",
    hint="ask for a copy (`x.clone()`) or a view (`x.view`), whichever is intended",
)
register_break(
    RNG_ORDER,
    what="normal random numbers are drawn into memory with gaps",
    why="a graph fills dense memory, for which torch consumes the RNG stream differently",
    hint="draw them with `torch.randn` and copy them to their destination",
)
STRIDED_FROM_INSIDE = register_break(
    "strided-from-inside",
    what="a view by strides of an input with symbolic sizes that does not begin where its storage does, from a given "
    "element of the storage or with a gradient",
    why="the shared elements depend on the input's storage offset, which the trace does not know",
    hint="make the view of the whole tensor that owns the memory, or mark the input static",
)
PINNED_MEMORY = register_break(
    "pinned-memory",
    what="a tensor is made in pinned memory (`pin_memory=True`), or torch's operator is asked whether one is",
    why="a graph makes tensors in memory of its own, which is not pinned, and fake tensors cannot answer",
    hint="make the tensor outside the compiled function, and copy to it inside",
)
OUT_RESIZED = register_break(
    "out-resized",
    what="a tensor given as `out=` gets another shape",
    why="the resized tensor would be one of the caller's, and torch warns of it",
    hint="give a tensor of the right shape, or leave `out=` away",
)
SPARSE = register_break(
    SPARSE_GRADIENT,
    what="an operation asks autograd for a sparse gradient (`nn.Embedding(sparse=True)`, `gather(sparse_grad=True)`)",
    why="the number of its elements is known only at run time, and a graph's gradients are dense",
    hint="call it outside the compiled function, or without `sparse=True`; without gradients it is taken",
)
NEW_LEAF = register_break(
    "new-leaf",
    what="a tensor that requires gradients is made under a transform, or in a Function",
    why="gradients are accumulated in it, and the body has no leaves but its inputs",
    hint="make the tensor outside the compiled function",
)
LEAF_VIEW = register_break(
    "leaf-view",
    what="a view of what has gradients, taken without recording them, is used where they are recorded",
    why="it has requires_grad and receives no gradient: eager mode saves less for it than for other tensors",
    hint="detach the view, or take it where gradients are recorded",
)
INPUT_RESHAPED = register_break(
    "input-reshaped",
    what="a tensor that was there before the call gets another shape or other strides in place",
    why="a graph is compiled for the layouts of its inputs; later code is traced again with the new layout",
    hint="take the result of the operation without underscore, or reshape the tensor outside of the compiled function",
)

#: Exceptions of fakes that mean that an operation cannot be in the graph, and their breaks.
ERRORS: Final[tuple[tuple[type[Exception], BreakKind], ...]] = (
    (NotExpressible, ARGUMENT_WITHOUT_TEXT),
    (KernelRefuses, EAGER_REFUSES),
    (unstable.DataDependentOutputException, DATA_DEPENDENT),
    (unstable.DynamicOutputShapeException, DYNAMIC_OUTPUT_SHAPE),
    (GuardOnDataDependentSymNode, DATA_DEPENDENT),
    (unstable.UnsupportedFakeTensorException, FAKE_UNSUPPORTED),
    (unstable.UnsupportedOperatorException, FAKE_UNSUPPORTED),
    (NotImplementedError, FAKE_UNSUPPORTED),
    (Exception, OPERATION_FAILED),
)


#: Exceptions of fakes at an operation with an unbacked result, while the trace has no symbols.
NEEDS_SYMBOLS: Final = (unstable.DataDependentOutputException, unstable.DynamicOutputShapeException)


class OnFakes(threading.local):
    """Whether this thread is running an operation on fakes."""

    running = False


on_fakes = OnFakes()


#: torch's Python reference implementations, which only fakes run; the real kernels give the same warnings.
REFERENCES: Final = "torch._"


def is_own_warning(record: logging.LogRecord) -> bool:
    """A filter for torch's log that drops reports of failures on fakes: the program's own run reports them."""
    return not on_fakes.running


logging.getLogger(FakeTensorMode.__module__).addFilter(is_own_warning)


def _kind(error: Exception) -> BreakKind:
    if isinstance(error, TraceUnsupported):
        return BREAKS.get(error.id, UNTRACED_WRITES)
    if is_memory_read(error):
        return MEMORY_READ
    return next(kind for cls, kind in ERRORS if isinstance(error, cls))


def graph_argument(arg: Any) -> Any:
    """Return the FX argument for a value or a nested container of values."""
    if isinstance(arg, Value):
        return arg.as_proxy()
    if isinstance(arg, tuple | list):
        return type(arg)(graph_argument(item) for item in arg)
    if isinstance(arg, dict):
        return {key: graph_argument(item) for key, item in arg.items()}
    return arg


def call_torch(frame: TracingFrame, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Value:
    """Run a torch call on fakes, record it, and return the value of its result."""
    graph_args = [graph_argument(arg) for arg in args]
    graph_kwargs = {name: graph_argument(arg) for name, arg in kwargs.items()}
    if concerns_pinning(target, graph_kwargs):
        raise GraphBreak(PINNED_MEMORY, _name(target))
    if graph_kwargs.get("requires_grad") is True and _makes_leaf(frame, target):
        if graph_kwargs.get("out") is not None:
            raise GraphBreak(AUTOGRAD_STATE, f"{_name(target)} with requires_grad=True and out=")
        rest = {name: arg for name, arg in kwargs.items() if name != "requires_grad"}
        return call_torch(frame, new_leaf, (call_torch(frame, target, args, rest),), {})
    builder = frame.state.builder
    out = list(tensors_in(fx.node.map_arg(graph_kwargs.get("out"), fake_of_node)))
    shapes = [fake.shape for fake in out]
    result, effects = _on_fakes(frame, target, graph_args, graph_kwargs)
    if effects.custom and placed_after_graph(frame, frame.state, target, args, kwargs, result, effects):
        return frame.constant(None)
    try:
        node = builder.record(target, graph_args, graph_kwargs, result, effects)
    except (TraceUnsupported, NotExpressible) as error:
        raise GraphBreak(_kind(error), _describe(target, error)) from error
    if shapes != [fake.shape for fake in out]:
        raise GraphBreak(OUT_RESIZED, _name(target))
    if effects_of(node).reshaped and any(map(builder.is_input, effects_of(node).written)):
        raise GraphBreak(INPUT_RESHAPED, _name(target))
    check_rollback(builder, node, _name(target))
    _check_writes(frame, target, effects_of(node).written, result)
    for fake in effects_of(node).restrided:
        within = any([*guarded_offsets(frame, builder, fake)])  # all of them, even if nothing breaks
        if within and (effects.has_offset or (fake.requires_grad and torch.is_grad_enabled())):
            raise GraphBreak(STRIDED_FROM_INSIDE, _name(target))
    for ref in changed_histories(builder, node):
        guard_change(frame, ref)
    if isinstance(result, list | tuple) and effects_of(node).written and isinstance(graph_args[0], list | tuple):
        changed = [fake_of_node(item) for item in graph_args[0]]
        if len(changed) == len(result) and all(map(operator.is_, changed, result)):
            given: Value = args[0]
            return given  # an in-place operation returns the list or tuple itself
    value = _result_value(frame, result, node)
    builder.check_assumptions()
    return value


def _check_writes(frame: TracingFrame, target: Any, written: Sequence[torch.Tensor], result: Any) -> None:
    """Break where a call changes tensors, or takes a view, that something done after the graph depends on.

    What the trace knew of the items of changed tensors is forgotten.
    """
    facts, builder = frame.facts, frame.state.builder
    if facts.tensor_items:
        forget_written(frame, written)
    if facts.hooked and any(storage_id(one) in facts.hooked for one in written if one.layout is torch.strided):
        raise GraphBreak(HOOKED, _name(target))
    if facts.shared_data and breaks_sharing(facts, builder, target, written, result):
        raise GraphBreak(SHARED_DATA, _name(target))
    if writes_too_early(frame, builder, written):
        raise GraphBreak(EFFECT_READS, _name(target))


def _makes_leaf(frame: TracingFrame, target: Any) -> bool:
    """Whether a call with `requires_grad=True` is of a factory function of torch, where a graph can make leaves."""
    body = frame.facts.body
    return isinstance(target, str | BuiltinFunctionType) and not (body.level or body.functions)


def _on_fakes(frame: TracingFrame, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Effects]:
    """Run the call on fakes. Breaks the graph where the operation raises; errors in recording it pass through.

    Warnings are reported at the user's line, by the first attempt to trace the call.
    """
    on_fakes.running = True
    try:
        with without_warnings("" if frame.state.log.reason is not None else REFERENCES):
            return _tried(frame, target, args, kwargs)
    finally:
        on_fakes.running = False


def _tried(frame: TracingFrame, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Effects]:
    fakes, named_fakes = fx.node.map_arg((tuple(args), dict(kwargs)), fake_of_node)
    _check_leaves(frame.state.builder, fakes, named_fakes, target)
    at, log = frame.location(), frame.state.builder.new_log()
    try:
        call, rest = (getattr(fakes[0], target), fakes[1:]) if isinstance(target, str) else (target, fakes)
    except AttributeError as error:
        raise GraphBreak(OPERATION_FAILED, _describe(target, error)) from error
    call = called_from(at, frame.globals, call)
    frame.state.builder.check_assumptions()
    try:
        result = frame.state.builder.run(log, call, rest, named_fakes)
    except RecordingFailed:
        raise
    except NEEDS_SYMBOLS as error:
        if frame.state.symbols.allow_unbacked():
            return _tried(frame, target, args, kwargs)
        raise GraphBreak(_kind(error), _describe(target, error)) from error
    except Exception as error:
        kind = _kind(error)
        if kind is OPERATION_FAILED and is_defect(error):
            raise
        raise GraphBreak(kind, _describe(target, error)) from error
    if not all(isinstance(made, FakeTensor) for made in tensors_in(result)):
        raise GraphBreak(FAKE_UNSUPPORTED, f"{_name(target)} makes a tensor that is none (on the device 'meta')")
    try:
        log.rely_on_copies((*fakes, *named_fakes.values()), result)
    except TraceUnsupported as error:
        raise GraphBreak(_kind(error), _describe(target, error)) from error
    return result, log.effects


def _name(target: Any) -> str:
    return target if isinstance(target, str) else str(getattr(target, "__name__", repr(target)))


def _describe(target: Any, error: Exception) -> str:
    name = _name(target)
    lines = str(error).strip().splitlines()
    return f"{name}: {type(error).__name__}: {lines[0] if lines else ''}"


def tensor_value(frame: TracingFrame, fake: torch.Tensor, node: fx.Node) -> Value:
    """Return the value of a result tensor; that of an earlier tensor if the operation returned it."""
    ref = frame.state.builder.ref(fake, node)
    known = frame.state.tensors.get(ref)
    if known is None:
        is_meant = node.target is new_leaf
        if fake.requires_grad and fake.is_leaf and not is_meant and not _is_view_without_grad(frame, fake):
            raise GraphBreak(NEW_LEAF, _name(node.target))
        cls = torch.nn.Parameter if isinstance(fake, torch.nn.Parameter) else torch.Tensor
        known = frame.state.tensors[ref] = TensorValue(ref, cls=cls)
    return known


def _is_view_without_grad(frame: TracingFrame, fake: torch.Tensor) -> bool:
    """Whether a leaf is a view of an input taken without gradients, which needs none while they stay off.

    Gradients are off for as long as a method of a Function runs.
    """
    builder = frame.state.builder
    if torch.is_grad_enabled():
        return False
    if frame.facts.body.functions and fake._is_view():
        return True
    if not builder.is_view_of_input(fake):
        return False
    builder.leaf_views.append(fake)
    return True


def accumulates_nothing(tensor: torch.Tensor) -> bool:
    """Whether a real tensor is a view taken without gradients: it has `requires_grad`, as its base does."""
    if not (tensor.requires_grad and tensor.is_leaf and tensor._is_view()):
        return False
    with torch.enable_grad():
        seen = tensor.view_as(tensor).grad_fn
    return seen is None or seen.next_functions[0][0] is None


def _check_leaves(builder: GraphBuilder, args: Sequence[Any], kwargs: Mapping[str, Any], target: Any) -> None:
    """Break where a view that was taken without gradients is used where they are recorded."""
    if builder.leaf_views and torch.is_grad_enabled():
        used = {id(fake) for fake in tensors_in((*args, *kwargs.values()))}
        if any(id(leaf) in used for leaf in builder.leaf_views):
            raise GraphBreak(LEAF_VIEW, _name(target))


def _result_value(frame: TracingFrame, result: Any, node: fx.Node) -> Value:
    if isinstance(result, torch.Tensor):
        return tensor_value(frame, result, node)
    if isinstance(result, tuple | list) and not isinstance(result, torch.Size):
        items = [_item_value(frame, item, node, index) for index, item in enumerate(result)]
        if isinstance(result, list):  # fx returns lists as a class of its own
            return new_list(frame, items)
        return TupleValue(items) if type(result) is tuple else NamedTupleValue(items, type(result))
    if type(result) is dict:
        return new_dict(
            frame, [(frame.constant(key), _item_value(frame, item, node, key)) for key, item in result.items()]
        )
    if isinstance(result, PullBack):
        return PullBackValue(node)
    if is_symbolic(result):
        frame.state.builder.number(result, node)
    return _constant_result(frame, result)


def _item_value(frame: TracingFrame, item: Any, node: fx.Node, index: Any) -> Value:
    if item is None or isinstance(item, bool | int | float | str):
        return frame.constant(item)
    if is_symbolic(item) and frame.state.builder.numbers.knows(item):
        return frame.constant(item)
    return _result_value(frame, item, frame.state.builder.item(node, index, item))


def _constant_result(frame: TracingFrame, result: Any) -> Value:
    try:
        return frame.constant(result)
    except (TypeError, GraphBreak):
        raise GraphBreak(STRANGE_RESULT, type(result).__qualname__) from None
