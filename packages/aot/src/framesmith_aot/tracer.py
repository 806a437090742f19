"""Records the ATen calls that reach it into an FX graph, `meta["val"]` on every node.

The tracer sits below autograd and functionalisation and above the fake tensor mode, so what it sees
is functional ATen on fake tensors.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from framesmith_aot.contracts import Decompositions
from framesmith_aot.errors import AotUnsupported
from framesmith_aot.shape_rules import SHAPE_RULES
from framesmith_aten.operators import is_composite, undeclared_writes

_PROVENANCE = ("stack_trace", "nn_module_stack")
_QUERIES: dict[Any, Callable[..., Any]] = {torch.ops.prim.device.default: lambda tensor: tensor.device}
_LIFTS = frozenset({torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default})


class GraphTracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that appends every call to `graph`.

    `source` is the torch-level node being run (its stack trace is copied), `phase` is written to
    `meta["phase"]`. Real tensors met as arguments become attributes, listed in `attributes`.
    """

    def __init__(self, fake_mode: FakeTensorMode, decompositions: Decompositions) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        self.fake_mode = fake_mode
        self.decompositions = decompositions
        self.source: fx.Node | None = None
        self.phase = "forward"
        self.attributes: dict[str, torch.Tensor] = {}
        self._nodes: dict[int, fx.Node] = {}
        self._kept: list[torch.Tensor] = []

    def placeholder(self, name: str, value: torch.Tensor) -> fx.Node:
        """Adds a graph input standing for the fake tensor `value`."""
        node = self.graph.placeholder(name)
        self._describe(node, value)
        self.bind(value, node)
        return node

    def bind(self, value: torch.Tensor, node: fx.Node) -> None:
        """From now on `value` is the result of `node`."""
        self._nodes[id(value)] = node
        self._kept.append(value)

    def node_of(self, value: torch.Tensor) -> fx.Node:
        """The node that computed the fake tensor `value`; a constant becomes an attribute."""
        node = self._nodes.get(id(value))
        return node if node is not None else self._attribute(value)

    def dispatch(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        query = _QUERIES.get(func)
        if query is not None:
            return query(*args, **kwargs)
        rule = self.decompositions.get(func)
        if rule is not None:
            with self:
                result = rule(*args, **kwargs)
            if result is not NotImplemented:
                return result
        elif is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        _refuse_hidden_mutation(func, args, kwargs)
        rule = SHAPE_RULES.get(func)
        out = rule(*args, **kwargs) if rule is not None else None
        if out is None:
            out = func(*args, **kwargs)
        self._record(func, args, kwargs, out)
        return out

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if func in _LIFTS and id(args[0]) not in self._nodes:
            args = (self._lift(args[0]),)
            func = torch.ops.aten.clone.default
        if not isinstance(out, (torch.Tensor, tuple, list)) and func._schema.returns:
            return
        node = self.graph.create_node("call_function", func, self._strip(args), self._strip(kwargs))
        self._describe(node, out)
        if isinstance(out, torch.Tensor):
            self.bind(out, node)
        for index, item in enumerate(out if isinstance(out, (tuple, list)) else ()):
            if isinstance(item, torch.Tensor):
                part = self.graph.create_node("call_function", operator.getitem, (node, index))
                self._describe(part, item)
                self.bind(item, part)

    def _lift(self, value: torch.Tensor) -> torch.Tensor:
        self._attribute(value)
        return value

    def _attribute(self, value: torch.Tensor) -> fx.Node:
        if isinstance(value, torch._subclasses.FakeTensor):
            raise AotUnsupported("unknown-tensor", "a fake tensor from outside the graph", "its value is not known")
        name = f"_constant{len(self.attributes)}"
        self.attributes[name] = value
        node = self.graph.create_node("get_attr", name)
        fake = self.fake_mode.from_tensor(value)
        self._describe(node, fake)
        self.bind(value, node)
        return node

    def _describe(self, node: fx.Node, value: Any) -> None:
        node.meta["val"] = value
        node.meta["phase"] = self.phase
        if self.source is not None:
            node.meta["source_node"] = self.source.name
            for key in _PROVENANCE:
                if key in self.source.meta:
                    node.meta[key] = self.source.meta[key]

    def _strip(self, value: Any) -> Any:
        """Arguments with tensors replaced by their nodes."""
        if isinstance(value, torch.Tensor):
            return self.node_of(value)
        if isinstance(value, (list, tuple)):
            return type(value)([self._strip(item) for item in value])
        if isinstance(value, dict):
            return {key: self._strip(item) for key, item in value.items()}
        if isinstance(value, torch.Generator):
            raise AotUnsupported(
                "generator", "a random generator as an argument", "its state cannot be made a graph input"
            )
        return value


# Assigned after the class is made: a `__torch_dispatch__` in the class body gets wrapped by torch in a
# function that imports torch._dynamo (a second) at its first call.
setattr(GraphTracer, "__torch_dispatch__", GraphTracer.dispatch)  # noqa: B010


def _refuse_hidden_mutation(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if undeclared_writes(func, args, kwargs):
        raise AotUnsupported(
            "hidden-mutation", f"{func}", "it updates running statistics that its schema does not declare"
        )
