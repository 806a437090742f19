"""Runs a segment on fake tensors and records the ATen calls under it as an FX graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from framesmith_autograd_compiler.errors import CaptureUnsupported
from framesmith_guards import new_fake_mode

Values = Sequence[torch.Tensor | None]

_LIFTS = frozenset({torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default})


@dataclass(frozen=True)
class Traced:
    """`module` takes the tensors among the inputs, in order, and returns a tuple of tensors.

    `outputs[i]` is the position of the segment's i-th result in that tuple, None for an absent result.
    """

    module: fx.GraphModule
    outputs: tuple[int | None, ...]


def trace(run: Callable[[list[Any]], list[Any]], inputs: Values) -> Traced:
    """Records `run` for tensors like `inputs`. Raises what `run` raises on fake tensors.

    The graph holds ATen overloads on plain tensors, `meta["val"]` on every node; it is not functional
    where a derivative itself mutates its intermediates.
    """
    mode = new_fake_mode()
    recorder = _CallRecorder(mode)
    values = [None if value is None else recorder.placeholder(index, value) for index, value in enumerate(inputs)]
    with torch.no_grad(), mode, recorder:
        results = [recorder.fresh(value) for value in run(list(values))]
    present = list({id(value): value for value in results if value is not None}.values())
    positions = {id(value): position for position, value in enumerate(present)}
    recorder.graph.output(tuple(recorder.node_of(value) for value in present))
    _drop_unused(recorder.graph)
    outputs = tuple(None if value is None else positions[id(value)] for value in results)
    return Traced(fx.GraphModule(recorder.attributes, recorder.graph), outputs)


class _CallRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Appends every call that reaches the dispatcher to `graph`."""

    def __init__(self, fake_mode: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        self.attributes: dict[str, torch.Tensor] = {}
        self._mode = fake_mode
        self._nodes: dict[int, fx.Node] = {}
        self._kept: list[torch.Tensor] = []

    def placeholder(self, index: int, value: torch.Tensor) -> torch.Tensor:
        fake: torch.Tensor = self._mode.from_tensor(value, static_shapes=True)
        self._bind(fake, self.graph.placeholder(f"input_{index}"))
        return fake

    def node_of(self, value: torch.Tensor) -> fx.Node:
        node = self._nodes.get(id(value))
        return node if node is not None else self._constant(value)

    def fresh(self, value: torch.Tensor | None) -> torch.Tensor | None:
        """A result that is no constant of the graph itself: the caller may keep and change it."""
        if value is None or self.node_of(value).op != "get_attr":
            return value
        return torch.clone(value)

    def dispatch(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            return args[0].device
        out = func(*args, **kwargs)
        func = torch.ops.aten.clone.default if func in _LIFTS else func  # a constant must stay what it is
        if isinstance(out, torch.Tensor):
            self._bind(out, self.graph.create_node("call_function", func, self._strip(args), self._strip(kwargs)))
        elif isinstance(out, (tuple, list)):
            node = self.graph.create_node("call_function", func, self._strip(args), self._strip(kwargs))
            node.meta["val"] = out
            for index, item in enumerate(out):
                if isinstance(item, torch.Tensor):
                    self._bind(item, self.graph.create_node("call_function", operator.getitem, (node, index)))
        return out

    def _bind(self, value: torch.Tensor, node: fx.Node) -> None:
        node.meta["val"] = value
        self._nodes[id(value)] = node
        self._kept.append(value)

    def _constant(self, value: torch.Tensor) -> fx.Node:
        if isinstance(value, torch._subclasses.FakeTensor):
            raise CaptureUnsupported("a fake tensor from outside the graph", "its value is not known")
        name = f"constant_{len(self.attributes)}"
        self.attributes[name] = value
        node = self.graph.create_node("get_attr", name)
        fake = self._mode.from_tensor(value, static_shapes=True)
        self._bind(fake, node)
        self._nodes[id(value)] = node
        self._kept.append(value)
        return node

    def _strip(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.node_of(value)
        if isinstance(value, (list, tuple)):
            return type(value)([self._strip(item) for item in value])
        if isinstance(value, dict):
            return {key: self._strip(item) for key, item in value.items()}
        return value


# Assigned after the class is made: a `__torch_dispatch__` in the class body gets wrapped by torch in a
# function that imports torch._dynamo (a second) at its first call.
setattr(_CallRecorder, "__torch_dispatch__", _CallRecorder.dispatch)  # noqa: B010


def _drop_unused(graph: fx.Graph) -> None:
    for node in reversed(graph.nodes):
        if not node.users and node.op == "call_function" and _is_pure(node.target):
            graph.erase_node(node)


def _is_pure(target: Any) -> bool:
    if target is operator.getitem:
        return True
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags
