"""Records the calls of a backward pass as an FX graph.

The engine's capture hook creates a `Recorder` for each new kind of backward pass and calls its methods instead of
running nodes. Tensors are given to it as meta tensors that stand for values.

The graph's inputs are `calls.PassInput`s; its calls are those of `calls`, and functions of numbers.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final, cast

import torch
from torch import fx

from framesmith_aten.contract import EvaluatesBackward
from framesmith_aten.fakes import new_fake_mode
from framesmith_aten.fakes.symbols import symbolic_number
from framesmith_aten.graphs.numbers import ScalarNodes
from framesmith_aten.meta import ORIGIN
from framesmith_aten.symbolic import is_symbolic
from framesmith_autograd_compiler import calls, user_calls
from framesmith_autograd_compiler.errors import CaptureUnsupported
from framesmith_guards import LocalSource
from framesmith_guards.torch_adapter import FakeTensor

#: Torch's own compiler of backward passes, which shares the engine's hook and cache.
OTHER_COMPILER: Final = "torch._dynamo.compiled_autograd"
#: Derivatives by name. The engine announces each once per process, to the recorder of that time.
NODE_FUNCTIONS: dict[str, calls.NodeCall] = {}

Values = Sequence[torch.Tensor | None]


class Recorder:
    """Records one backward pass; `finish(recorder)` returns what the engine caches for the next pass like it.

    After the capture, `graph` is complete, and `inputs` counts the tensors; `groups` are its calls by autograd node,
    each with the node's name. `specialised`: tracing depended on a size or scalar that the engine treats as an input,
    so that the graph is right for this pass alone.
    """

    def __init__(self, finish: Callable[[Recorder], tuple[Any, Any]]) -> None:
        self.graph = fx.Graph()
        self.inputs = 0
        self._finish = finish
        self._numbers = ScalarNodes(self.graph)
        self._mode = new_fake_mode()
        self._modes = ExitStack()
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[Any] = []
        self._extra: dict[calls.PassInput, fx.Node] = {}
        self._origin = ""
        self.groups: list[tuple[str, list[fx.Node]]] = []

    # The engine calls these methods; names and arguments are its own.

    def begin_capture(
        self, inputs: list[torch.Tensor], sizes: Any, scalars: Any, origins: Any, *switches: Any
    ) -> tuple[str, list[torch.Tensor], list[Any], list[Any]]:
        """Return the pass's name in profiles, and the stand-ins that the engine traces with."""
        self.inputs = len(inputs)
        stand_ins = [self._stand_in(value) for value in inputs]
        for index, value in enumerate(stand_ins):
            self._bind(value, calls.PassInput("input", index).placeholder(self.graph))
        numbers = [self._symbol(calls.PassInput("size", index), size) for index, size in enumerate(sizes)]
        floats = [self._symbol(calls.PassInput("scalar", index), scalar) for index, scalar in enumerate(scalars)]
        self._modes.enter_context(self._mode)  # what the engine makes of symbolic sizes is fake
        return "framesmith", stand_ins, numbers, floats

    @property
    def specialised(self) -> bool:
        env: Any = self._mode.shape_env
        return env is not None and bool(env.guards or env.replacements)

    def _symbol(self, source: calls.PassInput, number: int | float) -> Any:
        symbol = symbolic_number(self._mode, number, LocalSource(source.name))
        node = source.placeholder(self.graph)
        node.meta["val"] = symbol
        self._numbers.bind(symbol, node)
        return symbol

    def bind_function(self, name: str, function: Callable[..., Any], is_custom: bool, is_traceable: bool) -> str:
        """The engine announces a derivative."""
        if is_custom:
            name = f"custom_{name}_{len(NODE_FUNCTIONS)}"
        NODE_FUNCTIONS[name] = calls.NodeCall(name, function)
        return name

    def set_node_origin(self, name: str, index: int, node: Any) -> None:
        """The engine is at this node."""
        self._origin = f"{name} {index}"
        self.groups.append((name, []))

    def apply_functional(self, name: str, grads: Values, args: Sequence[Any], metadata: Sequence[Any]) -> list[Any]:
        """Record a derivative of the engine's own."""
        node = self._call(_node_function(name), (list(grads), *args))
        return self._parts(node, [item is not None for item in metadata])

    def validate_outputs(self, _: Any, outputs: Values, args: Sequence[Any], metadata: Any) -> list[Any]:
        """Record the engine's check, and conversion, of a node's results for their receivers."""
        if not any(output is not None for output in outputs):
            return list(outputs)
        node = self._call(_node_function("validate_outputs"), (list(outputs), *args))
        return self._parts(node, [output is not None for output in outputs])

    def accumulate(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Record the sum of two gradients that reach one node."""
        return self._result(self._call(calls.add, (first, second)))

    def accumulate_grad(self, variable: torch.Tensor, *args: Any) -> torch.Tensor | None:
        """Record that a gradient reaches a leaf.

        `args`: the leaf's gradient before (since torch 2.13), this gradient, whether there are hooks. Returns the
        leaf's gradient after, for 2.13.
        """
        *before, grad, has_post_hooks = args
        node = self._call(
            _node_function(calls.ACCUMULATE_GRAD), ([grad], variable, *(before or [None]), has_post_hooks)
        )
        if not before:
            return None
        result = self._stand_in(variable)
        self._bind(result, node)
        return result

    def proxy_call_backward(
        self,
        inputs: Values,
        metadata: Sequence[Any],
        saved: Sequence[torch.Tensor],
        context: int,
        ctx: Any,
        state: Any,
        opaque: Sequence[Any],
    ) -> tuple[Any, ...]:
        """Record a custom function's backward."""
        cls = ctx._forward_cls
        if state is not None or opaque:
            raise CaptureUnsupported(cls.__name__, "it saves Python objects for its backward pass")
        if getattr(cls, "boxed_grads_call", False):
            raise CaptureUnsupported(cls.__name__, "it takes its gradients as one list")
        for value in inputs:
            self._record_zeros(value)
        if isinstance(cls, EvaluatesBackward):
            node = self._call(calls.Evaluation(cls), (list(inputs), list(saved)))
        else:
            node = self._call(calls.call_backward, (self._hook(context), list(saved), list(inputs)))
        return tuple(self._parts(node, [item is not None for item in metadata]))

    def _record_zeros(self, value: torch.Tensor | None) -> None:
        """Record a gradient of zeros that the engine has made for a result of a custom function without one."""
        if isinstance(value, FakeTensor) and id(value) not in self._nodes:
            node = self._call(calls.zeros, (tuple(value.shape), value.dtype, value.device))
            self._bind(value, node)

    def call_copy_slices_prologue(self, inputs: Values, *geometry: Any) -> list[Any]:
        """Record the start of the derivative of an in-place mutation of a view."""
        base, view = tuple(geometry[:3]), tuple(geometry[3:])
        return self._parts(self._call(calls.copy_slices_prologue, (inputs[0], base, view)), [True] * 3)

    def call_copy_slices_epilogue(
        self, needed: Sequence[bool], result: torch.Tensor, grads: Values, part: torch.Tensor
    ) -> list[Any]:
        node = self._call(calls.copy_slices_epilogue, (list(needed), result, list(grads), part))
        return self._parts(node, [wanted and grad is not None for wanted, grad in zip(needed, grads, strict=True)])

    def tensor_pre_hook(self, inputs: list[Any], hook: int, index: int) -> list[Any]:
        return self._replaced(inputs, index, user_calls.call_tensor_hook, self._hook(hook))

    def cpp_tensor_pre_hook(self, inputs: list[Any], hook: int, index: int) -> list[Any]:
        return self._replaced(inputs, index, calls.call_cpp_hook, hook)

    def pre_hook(self, inputs: Values, hook: int) -> list[Any]:
        node = self._call(user_calls.call_pre_hook, (self._hook(hook), list(inputs)))
        return self._parts(node, [value is not None for value in inputs])

    def post_hook(self, outputs: Values, inputs: Values, hook: int) -> list[Any]:
        node = self._call(user_calls.call_post_hook, (self._hook(hook), list(outputs), list(inputs)))
        return self._parts(node, [value is not None for value in outputs])

    def post_acc_grad_hook(self, variable: torch.Tensor, hook: int) -> list[Any]:
        self._call(calls.call_leaf_hook, (self._hook(hook), variable))
        return [variable]

    def unpack_hook(self, hook: int, packed: int) -> torch.Tensor:
        """Record the unpacking of a saved tensor by the user's hooks."""
        operands = (self._hook(hook), self._placeholder(calls.PassInput("packed", packed)))
        return self._result(self._call(calls.call_unpack_hook, operands))

    def bind_backward_state(self, index: int) -> Any:
        raise CaptureUnsupported("a function's backward state", "it is not recorded")

    def end_capture(self, outputs: Values) -> tuple[Any, Any]:
        """Finish the graph; `outputs` are the gradients that were asked for by name."""
        self._modes.close()
        self.graph.output(tuple(map(_before_hooks, self._strip(list(outputs)))))
        return self._finish(self)

    def close(self) -> None:
        """The engine drops the recorder, also after an error."""
        self._modes.close()
        self._nodes.clear()
        self._alive.clear()

    def _call(self, target: Callable[..., Any], args: tuple[Any, ...]) -> fx.Node:
        node = self.graph.call_function(target, self._strip(args))
        ORIGIN.set(node, self._origin)
        self._grouped(node)
        return node

    def _grouped(self, node: fx.Node) -> fx.Node:
        if self.groups:
            self.groups[-1][1].append(node)
        return node

    def _parts(self, node: fx.Node, present: Sequence[bool]) -> list[Any]:
        """Return a stand-in for each result that is present, None for the others."""
        return [
            self._result(self._grouped(self.graph.call_function(operator.getitem, (node, index)))) if wanted else None
            for index, wanted in enumerate(present)
        ]

    def _replaced(self, inputs: list[Any], index: int, target: Callable[..., Any], hook: Any) -> list[Any]:
        values = list(inputs)
        if values[index] is not None:
            values[index] = self._result(self._call(target, (hook, values[index])))
        return values

    def _result(self, node: fx.Node) -> torch.Tensor:
        value = torch.empty(0, device="meta")
        self._bind(value, node)
        return value

    def _stand_in(self, value: torch.Tensor) -> torch.Tensor:
        if value.layout is not torch.strided or type(value) not in (torch.Tensor, torch.nn.Parameter):
            what = f"a {type(value).__name__} of layout {value.layout}"
            raise CaptureUnsupported(what, "only plain tensors are recorded")
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        return made.requires_grad_(value.requires_grad and value.is_leaf)

    def _bind(self, value: torch.Tensor, node: fx.Node) -> None:
        self._nodes[id(value)] = node
        self._alive.append(value)

    def _hook(self, index: int) -> fx.Node:
        return self._placeholder(calls.PassInput("hook", index))

    def _placeholder(self, source: calls.PassInput) -> fx.Node:
        if source not in self._extra:
            first = next(iter(self.graph.nodes))
            with self.graph.inserting_before(first):
                self._extra[source] = source.placeholder(self.graph)
        return self._extra[source]

    def _strip(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in self._nodes:
                raise CaptureUnsupported(self._origin, "it uses a tensor that the engine made while tracing")
            return self._nodes[id(value)]
        if is_symbolic(value):
            return self._numbers.node_of(value)
        if isinstance(value, (list, tuple)):
            return type(value)([self._strip(item) for item in value]) if type(value) in (list, tuple) else value
        return value


def _before_hooks(result: fx.Node | None) -> fx.Node | None:
    """Return a gradient that was asked for by name: the one before the hooks of its tensor if its node runs, too."""
    if result is None or not result.users:
        return result
    before: Any = result
    while before.target in (user_calls.call_tensor_hook, calls.call_cpp_hook):
        before = before.args[1]
    return cast("fx.Node", before)


def _node_function(name: str) -> calls.NodeCall:
    known = NODE_FUNCTIONS.get(name)
    if known is not None:
        return known
    # It was announced to torch's own compiler of backward passes, which was used first in this process.
    other = sys.modules.get(OTHER_COMPILER)
    function = getattr(getattr(other, "ops", None), name, None)
    if function is None:
        raise CaptureUnsupported(name, "the engine announced its derivative to another compiler")
    NODE_FUNCTIONS[name] = calls.NodeCall(name, function)
    return NODE_FUNCTIONS[name]
