"""A Python function of scalars, traced once on 0-d tensors and recorded for all elements.

Note [Elementwise]: the effect of `torch.vmap` on such a function, without vmap. The function is called with 0-d
tensors, as in eager mode: shapes, type promotion and subscripts are those of scalars. The recorded nodes are then
recorded again on whole tensors that broadcast against each other, and the first record is erased. That is right if each
operation is elementwise, which is checked for every operator; nodes that do not depend on the scalars stay. Everything
else breaks the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from framesmith_aten.meta import EXAMPLE, LOCATION, MODE_CHANGE
from framesmith_aten.nested import tensors_in
from framesmith_aten.operators import IDENTITY_VIEWS, asks_device, row
from framesmith_aten.recording import effects_of
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.graph.builder import GraphBuilder, fake_of_node
from framesmith_dynamo.graph.subgraphs import erase, nodes_after
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.tensors.subscripts import is_read, read_at
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_guards.torch_adapter import TorchDispatchMode
from framesmith_sideeffects import MutationRefused

NOT_ELEMENTWISE = register_break(
    "not-elementwise",
    what="a function of single elements, such as a score_mod, does more than compute with them",
    why="it is recorded once for all elements, which is right only if every operation is elementwise",
    hint="compute with its arguments (score, indices), and with elements of captured tensors at such indices; "
    "prepare all else outside of the function",
)


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A torch mode that notes which operators read elements of tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        reads = any(True for _ in tensors_in((args, kwargs or {})))
        if reads and not (asks_device(func) or row(func).metadata):
            self.seen.append(func)
        return func(*args, **(kwargs or {}))


def elementwise(tr: Tracer, function: Value, wholes: Sequence[TensorValue]) -> TensorValue:
    """Apply a function of one element of each of `wholes` to all elements; see Note [Elementwise].

    The result broadcasts against `wholes`, which have equal numbers of dimensions.
    """
    builder = wholes[0].ref.builder
    scalars = [_scalar(tr, whole.fake) for whole in wholes]
    last = scalars[-1].as_proxy()
    before, tr.facts.body.elementwise_subscripts = tr.facts.body.elementwise_subscripts, True
    try:
        with tr.journal.nested("a function of single elements"):
            result = tr.call(function, scalars, {})
    except MutationRefused as error:
        raise GraphBreak(NOT_ELEMENTWISE, str(error)) from error
    finally:
        tr.facts.body.elementwise_subscripts = before
    if not isinstance(result, TensorValue):
        raise GraphBreak(NOT_ELEMENTWISE, f"it gives {result.describe()}")
    return _Replay(tr, builder, dict(zip(scalars, wholes, strict=True)), last).of(result)


def _scalar(tr: Tracer, whole: torch.Tensor) -> Value:
    options = {"dtype": tr.constant(whole.dtype), "device": tr.constant(whole.device)}
    return tr.call_torch(torch.zeros, (tr.constant(()),), options)


class _Replay:
    """Replays the nodes recorded after the node `last` with `wholes` in place of the scalars."""

    def __init__(self, tr: Tracer, builder: GraphBuilder, wholes: Mapping[Any, TensorValue], last: fx.Node) -> None:
        self.tr = tr
        self.builder = builder
        self.whole: dict[fx.Node, fx.Node] = {one.as_proxy(): whole.as_proxy() for one, whole in wholes.items()}
        self.values: dict[fx.Node, TensorValue] = {one.as_proxy(): whole for one, whole in wholes.items()}
        self.dims = max(whole.fake.dim() for whole in wholes.values())
        #: Partial reads, at fewer indices than the tensor has dimensions: the tensor and the indices.
        self.begun: dict[fx.Node, tuple[Any, list[Any]]] = {}
        self.recorded = nodes_after(last)

    def of(self, result: TensorValue) -> TensorValue:
        """Return the result for all elements, and erase the nodes recorded for scalars."""
        scalars = list(self.whole)
        dependent = list(scalars)
        for node in self.recorded:
            if MODE_CHANGE.get(node):
                raise GraphBreak(NOT_ELEMENTWISE, "it changes a mode of torch")
            if any(one in self.whole or one in self.begun for one in node.all_input_nodes):
                self._record(node)
                dependent.append(node)
        found = self.values.get(result.as_proxy())
        if found is None:  # it does not depend on the scalars
            found = result
        if result.fake.dim() != 0:
            raise GraphBreak(NOT_ELEMENTWISE, f"it gives {result.describe()}")
        erase(self.builder, dependent)
        return found

    def _record(self, node: fx.Node) -> None:
        effects, name = effects_of(node), str(node.target)
        if effects.written or effects.random:
            raise GraphBreak(NOT_ELEMENTWISE, f"{name} writes to a tensor, or draws random numbers")
        if is_read(node):
            self._read(node)
            return
        if any(one in self.begun for one in node.all_input_nodes):
            raise GraphBreak(NOT_ELEMENTWISE, f"{name} of a part of a captured tensor")
        given = [fake_of_node(one) for one in node.all_input_nodes]
        if any(isinstance(one, torch.Tensor) and one.dim() != 0 for one in given):
            raise GraphBreak(NOT_ELEMENTWISE, f"{name} of a whole captured tensor")
        makes = self._check_operators(node)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda one: self.whole.get(one, one))
        scalar = EXAMPLE.of(node)
        if not isinstance(scalar, torch.Tensor) or scalar.dim() != 0:
            raise GraphBreak(NOT_ELEMENTWISE, f"{name} gives more than an element")
        value = self.tr.call_torch(node.target, args, kwargs)
        if isinstance(value, TensorValue) and value.fake.dtype != scalar.dtype:
            value = self.tr.call_torch(node.target, *self._promoted(node))
        self._note(node, value, scalar, whole=not makes)

    def _promoted(self, node: fx.Node) -> tuple[Any, Any]:
        """Return the arguments as tensors with dimensions: a captured number then promotes as the scores do."""
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._broadcast)
        return args, kwargs

    def _broadcast(self, one: fx.Node) -> fx.Node:
        """Return a node for all elements; one that is the same for all gets as many dimensions."""
        if one in self.whole:
            return self.whole[one]
        if not isinstance(EXAMPLE.of(one), torch.Tensor):
            return one
        wide: fx.Node = self.tr.call_torch("view", (one, *[1] * self.dims), {}).as_proxy()
        return wide

    def _check_operators(self, node: fx.Node) -> bool:
        """Whether no operator of the node reads an element; breaks where one is not elementwise."""
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), fake_of_node)
        call = getattr(args[0], node.target) if isinstance(node.target, str) else node.target
        log = _Operators()
        self.builder.run(log, call, args[1:] if isinstance(node.target, str) else args, kwargs)
        for op in log.seen:
            if not _is_elementwise(op):
                raise GraphBreak(NOT_ELEMENTWISE, f"{op} is not elementwise")
        return not log.seen

    def _read(self, node: fx.Node) -> None:
        """Replay a read of an element of a captured tensor, or of a part that is read from next: those are one read."""
        tensor, indices = node.args
        tensor, before = self.begun.get(tensor, (tensor, []))  # type: ignore[arg-type]
        if tensor in self.whole:
            raise GraphBreak(NOT_ELEMENTWISE, "a subscript of a score")
        indices = [*before, *map(self._broadcast, indices)]  # type: ignore[arg-type]
        if len(indices) < fake_of_node(tensor).dim():
            self.begun[node] = (tensor, indices)
            return
        self._note(node, read_at(self.tr, tensor, indices), EXAMPLE.of(node), whole=True)

    def _note(self, node: fx.Node, value: Value, scalar: torch.Tensor, whole: bool) -> None:
        if not isinstance(value, TensorValue) or value.fake.dtype != scalar.dtype:
            raise GraphBreak(NOT_ELEMENTWISE, f"{node.target} gives another type for whole tensors")
        if value.fake.dim() != self.dims and (whole or value.fake.dim() != 0):
            raise GraphBreak(NOT_ELEMENTWISE, f"{node.target} gives more than an element")
        made = value.as_proxy()
        if LOCATION.on(node):
            made.meta.setdefault(LOCATION.name, LOCATION.of(node))
        self.whole[node], self.values[node] = made, value


def _is_elementwise(op: Any) -> bool:
    """Whether each element of the operator's result depends only on the operands' elements at the same index."""
    facts = row(op)
    return torch.Tag.pointwise in op.tags or facts.pointwise or facts.copies or op in IDENTITY_VIEWS
