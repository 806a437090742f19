"""Records the torch functions that a Python function calls as a flat torch-level graph.

Note [Recording]: the function runs once, on fake tensors, under a torch-function mode that makes a node of every call
with an effect on tensors: a result that is one, a write, a state of autograd or autocast. Tensors that the function
finds by itself (closures, globals, attributes of modules) become attributes of the graph, and with that inputs. What
happens behind the mode's back is refused by name: a graph without it would mean something else.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode

from framesmith_aot.capture.provenance import module_stack, stack_of_user
from framesmith_aot.errors import NotRecorded
from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace.interpret import refuse_method
from framesmith_aten.checks.overlaps import Overlaps
from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.fakes import python_kernels
from framesmith_aten.fakes.symbols import attach_shape_env
from framesmith_aten.graphs.modules import new_lazy_module
from framesmith_aten.graphs.numbers import ScalarNodes
from framesmith_aten.meta import EFFECTS, EXAMPLE, LOCATION, MODE_CHANGE
from framesmith_aten.nested import tensors_in
from framesmith_aten.operators import op_name
from framesmith_aten.recording import OperatorLog, note_effects
from framesmith_aten.symbolic import has_symbols, hint_or_none, is_data_dependent, is_symbolic
from framesmith_aten.tensor_methods import method_of
from framesmith_guards.contexts import ambient
from framesmith_guards.kinds.state import AUTOCAST_DEVICES
from framesmith_guards.torch_adapter import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)

#: Arguments that the source text of a graph can hold.
_TEXTUAL = (
    bool, int, float, complex, str, slice, type(None), type(Ellipsis),
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
)  # fmt: skip
_UNKNOWN = "it is not known while compiling"
#: Entries of `meta` that nodes of a graph module bring along.
_PROVENANCE = ("stack_trace", "nn_module_stack")
_TRANSFORM = "a function transform (torch.func)"


class _Here(threading.local):
    """The recorder whose function runs in this thread."""

    recorder: Recorder | None = None


_here = _Here()


def recorder_here() -> Recorder | None:
    """Return the recorder whose function runs in this thread, or None."""
    return _here.recorder


class Recorder(TorchFunctionMode):
    """A mode under which calls of torch become nodes of `graph`; one for one run of a function."""

    def __init__(self, fake_mode: FakeTensorMode, around: FrameType, modules: Mapping[int, str]) -> None:
        """`around`: the frame whose callees are the user's. `modules`: paths of modules, by the id."""
        super().__init__()
        self.graph = fx.Graph()
        self._fake_mode = fake_mode
        self._around = around
        self._modules = modules
        self._nodes: dict[int, fx.Node] = {}
        #: The tensors whose ids are known, which must live as long.
        self._alive: list[Any] = []
        self._held: dict[str, Any] = {}
        self._fakes_of_held: dict[int, torch.Tensor] = {}
        self._numbers = ScalarNodes(self.graph, EXAMPLE.name)
        #: The modes at the start, those of the last node, and the nodes that have opened autocast.
        self._before = self._state = ambient.read()
        self._hooks = unstable.top_saved_tensors_default_hooks(True)
        self._inference = torch.is_inference_mode_enabled()
        self._opened: list[fx.Node] = []
        self._overlaps = Overlaps([])
        self._random = torch.get_rng_state()
        #: The provenance of the node that is interpreted, where a graph module runs.
        self.source: fx.Node | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Inside, calls of torch become nodes; at the end, torch's modes are as before."""
        around, _here.recorder = _here.recorder, self
        try:
            with ambient.preserved(), self:
                yield
        finally:
            _here.recorder = around

    # Inputs and results

    def input(self, name: str, fake: torch.Tensor, real: torch.Tensor) -> None:
        """Add a placeholder for the fake of a tensor among the function's arguments."""
        node = self.graph.placeholder(name)
        EXAMPLE.set(node, fake)
        self._know(fake, node)
        self._overlaps.note_input(fake, real)
        self._numbers.offer_layout(fake, node, guarded=True)

    def finish(self, results: Sequence[Any]) -> fx.GraphModule:
        """Return the graph with these tensors and symbolic numbers as its results."""
        self._match_modes(self._before)
        self._check_seed()
        self.graph.output(tuple(map(self._operand, results)))
        return new_lazy_module(self._held, self.graph)

    def _know(self, fake: torch.Tensor, node: fx.Node) -> None:
        if id(fake) not in self._nodes:
            self._nodes[id(fake)] = node
            self._alive.append(fake)

    # Calls

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.__iter__:
            with self:
                return iter(args[0].unbind(0))
        if func is unstable.set_grad_enabled:  # the next call writes the mode down
            return func(*args)
        return self._record(func, *fx.node.map_aggregate((args, dict(kwargs or {})), self._as_fake))

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target, args = _target(func, args)
        if target is getattr and args[1] in ("grad", "_grad"):
            raise NotRecorded("gradient-read", f"Tensor.{args[1]}", "the tensor is no input of the graph")
        if target is getattr and args[1] in ("shape", "dtype", "device", "layout"):
            return getattr(*args)
        refuse_method(method_of(target), args, kwargs)
        self._match_modes(ambient.read())
        log = OperatorLog()
        result = self._run(getattr if target is getattr else func, args, kwargs, log)
        for one in _leaves(result):
            if is_symbolic(one) and hint_or_none(one) is None and not self._numbers.knows_expression(one.node.expr):
                raise NotRecorded("data-dependent", f"a value of data ({op_name(func)})", _UNKNOWN)
        if not log.effects.forbid_removal and not any(map(torch.is_tensor, _leaves(result))):
            return result
        if log.effects.random:
            self._check_seed()
        if log.effects.reshaped and kwargs.get("out") is not None:
            raise NotRecorded("metadata-mutation", f"{op_name(target)}(out=...)", "it resizes `out`")
        try:
            note_effects(self._overlaps, op_name(target), log.effects, tensors_in(kwargs.get("out")))
        except TraceUnsupported as error:
            raise NotRecorded(error.id, error.what, error.why) from error
        self._overlaps.note(result)
        node = self._node(target, args, kwargs)
        EXAMPLE.set(node, result)
        EFFECTS.set(node, log.effects)
        self._note(result, node)
        return result

    def _run(self, func: Callable[..., Any], args: Any, kwargs: Any, log: OperatorLog) -> Any:
        try:
            with self._fake_mode, log, python_kernels(self._fake_mode):
                return func(*args, **kwargs)
        except DynamicOutputShapeException as error:
            if self._fake_mode.shape_env is not None:
                raise NotRecorded("data-dependent", f"the rank of a result ({op_name(func)})", _UNKNOWN) from error
            attach_shape_env(self._fake_mode)  # sizes that depend on data become unbacked symbols
            return self._run(func, args, kwargs, log)
        except TraceUnsupported as error:
            raise NotRecorded(error.id, error.what, error.why) from error
        except Exception as error:
            if is_data_dependent(error) or isinstance(error, DataDependentOutputException):
                raise NotRecorded("data-dependent", f"a value of data ({op_name(func)})", _UNKNOWN) from error
            raise NotRecorded("trace-error", f"{type(error).__name__} in {op_name(func)}", str(error)) from error

    def _check_seed(self) -> None:
        """Raise AotUnsupported where the function has seeded the generator, which a graph does not."""
        if not torch.equal(torch.get_rng_state(), self._random):
            raise NotRecorded("seed", "torch.manual_seed", "a graph draws from the generator as the call finds it")

    def _node(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        operands, named = self._operand(args), self._operand(kwargs)
        kind = "call_method" if isinstance(target, str) else "call_function"
        return self._located(self.graph.create_node(kind, target, operands, named))

    def _located(self, node: fx.Node) -> fx.Node:
        """Give the node its lines and modules."""
        if self.source is not None:
            for key in _PROVENANCE:
                if key in self.source.meta:
                    node.meta[key] = self.source.meta[key]
            if node.stack_trace is not None:
                return node
        at, modules = stack_of_user(self._around)
        if at is not None:
            LOCATION.set(node, at)
            node.stack_trace = at.stack_trace
        if stack := module_stack(modules, self._modules):
            node.meta["nn_module_stack"] = stack
        return node

    def _note(self, result: Any, node: fx.Node) -> None:
        """Note the node of a result, and make those of its items."""
        if isinstance(result, torch.Tensor):
            self._know(result, node)
            if has_symbols(result):
                self._numbers.offer_layout(result, node)
            return
        if is_symbolic(result):
            self._numbers.bind(result, node)
            return
        if not isinstance(result, list | tuple):
            return
        for at, item in enumerate(result):
            if isinstance(item, torch.Tensor | list | tuple) or is_symbolic(item):
                of_item = self._located(self.graph.call_function(operator.getitem, (node, at)))
                EXAMPLE.set(of_item, item)
                self._note(item, of_item)

    # Modes

    def _match_modes(self, wanted: ambient.Ambient) -> None:
        """Write the changes of grad mode and autocast since the last node into the graph."""
        if torch.is_inference_mode_enabled() is not self._inference:
            raise NotRecorded("inference-mode", "torch.inference_mode", "its tensors are of another kind")
        if wanted.grad and unstable.top_saved_tensors_default_hooks(True) != self._hooks:
            why = "the hooks would not see what the graph saves"
            raise NotRecorded("saved-tensor-hooks", "a checkpoint, or torch.autograd.graph.saved_tensors_hooks", why)
        if wanted.autocast != self._state.autocast or wanted.cache != self._state.cache:
            while self._opened:
                self._mode_call(unstable.exit_autocast, self._opened.pop())
            pairs = zip(AUTOCAST_DEVICES, wanted.autocast, self._before.autocast, strict=True)
            for device, (enabled, dtype), before in pairs:
                if (enabled, dtype) != before:
                    opened = self._mode_call(unstable.enter_autocast, device, dtype, enabled, wanted.cache)
                    self._opened.append(opened)
        if wanted.grad != self._state.grad:
            self._mode_call(unstable.set_grad_enabled, wanted.grad)
        self._state = wanted

    def _mode_call(self, function: Any, *args: Any) -> fx.Node:
        node = self._located(self.graph.call_function(function, args))
        MODE_CHANGE.set(node, True)
        return node

    # Operands

    def _as_fake(self, value: Any) -> Any:
        """Return the fake of a tensor that the function has found by itself."""
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
            return value
        if id(value) not in self._fakes_of_held:
            if unstable.is_functorch_wrapped_tensor(value):
                raise NotRecorded("functorch", _TRANSFORM, "its operations are not seen one by one")
            fake = self._fake_mode.from_tensor(value, static_shapes=True)
            name = f"held_{len(self._held)}"
            self._held[name] = value
            node = self.graph.get_attr(name)
            EXAMPLE.set(node, fake)
            self._fakes_of_held[id(value)] = fake
            self._know(fake, node)
            self._overlaps.note_input(fake, value)
        return self._fakes_of_held[id(value)]

    def _operand(self, value: Any) -> Any:
        return fx.node.map_aggregate(value, self._leaf)

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._node_of(value)
        if is_symbolic(value):
            return self._numbers.node_of(value)
        if isinstance(value, (*_TEXTUAL, fx.Node)):
            return value
        name = f"held_{len(self._held)}"
        self._held[name] = value
        return self.graph.get_attr(name)

    def _node_of(self, value: torch.Tensor) -> fx.Node:
        value = self._as_fake(value)
        node = self._nodes.get(id(value))
        if node is None:
            wrapped = unstable.is_functorch_wrapped_tensor(value)
            what = _TRANSFORM if wrapped else "a tensor that no call of torch has made"
            raise NotRecorded(
                "functorch" if wrapped else "untracked-tensor", what, "its operations are not seen one by one"
            )
        if isinstance(value.grad_fn, torch.autograd.function.BackwardCFunction):
            what = "a torch.autograd.Function"
            raise NotRecorded("autograd-function", what, "its backward is not that of the operations it calls")
        return node


def _target(func: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Return the target of a node for a torch function, and the arguments that go with it.

    A property is `getattr`, a method its name, any other function itself.
    """
    name = str(getattr(func, "__name__", ""))
    if name in ("__set__", "__delete__"):
        what = f"an assignment to Tensor.{func.__self__.__name__}"
        raise NotRecorded("attribute-set", what, "a graph does not change tensor objects")
    if name == "__get__":
        return getattr, (args[0], func.__self__.__name__)
    return (name if getattr(torch.Tensor, name, None) is func else func), args


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        raise NotRecorded(
            "strange-result", "a call that returns a dict", "a graph has tensors, numbers and tuples of them"
        )
    else:
        yield value
