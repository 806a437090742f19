"""`tensor.data = value`: a tensor goes on with the memory of another one, and keeps its own history.

A tensor of the trace becomes an alias of the value. An input becomes a tensor of the graph, which has the memory of the
value and the gradient of the input; the input itself is given the memory after the graph. Its former memory, and what
shows it, stay as they are.

Note [Shared data]: from then on two tensors with versions of their own have one memory, which a graph does not follow:
neither may be changed in place. Nor may the input have been used where gradients are recorded: eager mode saves a leaf
itself, and its backward pass reads the new data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from framesmith_aten.graphs.autograd_calls import with_data
from framesmith_aten.layouts import share_storage, storage_id
from framesmith_aten.meta import EXAMPLE
from framesmith_aten.nested import tensors_in
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values.tensors.tensor_tables import AUTOGRAD_STATE
from framesmith_guards import AttrSource

if TYPE_CHECKING:
    from framesmith_dynamo.graph.builder import GraphBuilder
    from framesmith_dynamo.values.base import TraceFacts, Tracer
    from framesmith_dynamo.values.tensors.tensor_object import TensorObject

SHARED_DATA = register_break(
    "shared-data",
    what="memory that `tensor.data = value` has given to an input is changed in place, or a view with a history is "
    "taken of it",
    why="the input gets the memory after the graph has run, in which the two tensors are separate",
    hint="change the value before it is set, or change a clone of it",
)


def set_data(tr: Tracer, tensor: TensorObject, value: TensorObject) -> None:
    """Interpret `tensor.data = value`."""
    reason = next(_obstacles(tr, tensor, value.fake), None)
    if reason is not None:
        raise GraphBreak(AUTOGRAD_STATE, f"setting 'data' of {tensor.describe()}: {reason}")
    data = value.getattr_(tr, "data")
    if tensor.source is None:
        tr.become(tensor, data)
        return
    tr.guard(AttrSource(tensor.source, "_base"), "NONE_MATCH")
    tr.guard(AttrSource(tensor.source, "is_leaf"), "BOOL_MATCH", True)
    made = tr.call_torch(with_data, (tensor, data), {})
    tensor.track(tr)
    tr.journal.store_attr(tensor, "data", data)
    tr.become(tensor, made)
    tr.facts.shared_data.add(storage_id(tensor.fake))


def _obstacles(tr: Tracer, tensor: TensorObject, other: torch.Tensor) -> Iterator[str]:
    """Yield what keeps the trace from setting a tensor's data to that of another one."""
    own = tensor.fake
    if not all(one.layout is torch.strided and not one.is_inference() for one in (own, other)):
        yield "one of them is not strided, or was made in inference mode"
    elif (own.dtype, own.device) != (other.dtype, other.device):
        yield "it changes its type"
    elif own._is_view():
        yield "it is a view"
    elif tensor.source is not None:
        yield from _obstacles_of_input(tr, tensor, other)
    elif own.requires_grad:
        yield "it has a history"


def _obstacles_of_input(tr: Tracer, tensor: TensorObject, other: torch.Tensor) -> Iterator[str]:
    """Yield what keeps the trace from setting the data of an input to a tensor of its type."""
    builder, body = tr.builder, tr.facts.body
    if tensor.real is None or not tensor.real.is_leaf or tensor.real._is_view():
        yield "it is a view, or has a history"
    if tensor.fake.shape != other.shape:
        yield "it changes its shape"
    if any(ref.source is not None and share_storage(ref.fake, other) for ref in builder.refs.values()):
        yield "to the memory of an input"
    if body.level or body.functions or body.reentrant or builder.checkpoint is not None or builder.is_in_region:
        yield "in a transform, a Function, a checkpoint or a nested region"
    if unstable.is_any_autocast_enabled():
        yield "within autocast, which may keep a copy of the old data"
    if tr.facts.runs_engine or storage_id(tensor.fake) in tr.facts.hooked:
        yield "it has a hook, or a backward pass ran before"
    if _is_recorded(tensor):
        yield "autograd has recorded a use of it"


def _is_recorded(tensor: TensorObject) -> bool:
    """Whether a call that the graph records takes the tensor and gives one with a history."""
    results = (EXAMPLE.get(node) for node in tensor.ref.node.users)
    return any(one.requires_grad for result in results for one in tensors_in(result))


def breaks_sharing(
    facts: TraceFacts, builder: GraphBuilder, target: object, written: Sequence[torch.Tensor], result: object
) -> bool:
    """Whether a call changes memory that an input was given, or takes a view with a history of it.

    `written`: the tensors that it changes. See Note [Shared data].
    """
    made = () if target is with_data else tensors_in(result)
    views = (one for one in made if one.requires_grad and id(one) not in builder.refs)
    return any(one.layout is torch.strided and storage_id(one) in facts.shared_data for one in (*written, *views))
