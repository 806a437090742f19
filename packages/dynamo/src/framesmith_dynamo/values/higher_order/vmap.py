"""`torch.vmap`: torch's own Python code is interpreted; its last steps become one node with a subgraph of the body.

Note [One example]: the function is traced once, on the first example of each batch, which has the shape, dtype and
strides that eager mode's batched tensors report. The recorded nodes are extracted as a subgraph, and one call is
recorded, `vmapped(graph, ...)`, in which torch applies the operators to whole batches. It is run on fakes at once: an
operation that torch rejects under vmap raises there, and the graph breaks. Code that would see a difference between a
batched tensor and an example breaks where it reads it (`tr.facts.body.level`).
"""

from __future__ import annotations

from collections.abc import Sequence

from framesmith_aten.graphs.transforms import vmapped
from framesmith_aten.symbolic import is_unbacked
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.graph.subgraphs import extract_subgraph, last_node
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values.base import Args, Kwargs, TracedRaise, Tracer, Value
from framesmith_dynamo.values.callables import handles
from framesmith_dynamo.values.containers import new_list
from framesmith_dynamo.values.higher_order.subgraphs import ASKS_LEVEL, BODY_RAISES, Batched, recorded_call, traced_body
from framesmith_dynamo.values.tensors.tensor import TensorValue

NO_EXAMPLE = register_break(
    "batch-without-examples",
    what="torch.vmap is called for an empty batch, or one of unbacked size",
    why="its body is traced on the first example, and torch may reject an empty batch",
    hint="call the mapped function outside the compiled function",
)


class _Removal(Value):
    """The level of vmap, as a value, where the batch dimension is removed from each result of the body.

    A first run records the results and their dimensions; a second one, with the batches, returns them.
    """

    python_types = (int,)
    __slots__ = ("batches", "dims", "found")

    def __init__(self, batches: Sequence[Value] | None = None) -> None:
        super().__init__()
        self.batches = None if batches is None else iter(batches)
        self.found: list[TensorValue] = []
        self.dims: list[int | None] = []

    def of(self, tr: Tracer, result: Value, dim: Value) -> Value:
        """Return a result without its batch dimension, which becomes `dim`; None: it is the same for all examples."""
        if not isinstance(result, TensorValue):
            if not dim.is_none():
                raise GraphBreak(BODY_RAISES, f"it returns {result.describe()}")
            return result
        if self.batches is not None:
            return next(self.batches)
        self.found.append(result)
        self.dims.append(dim.as_constant())
        return result


class _Name(Value):
    """The name of a function without one, used in messages of vmap."""

    python_types = (str,)
    __slots__ = ()


@handles(unstable.name_of_mapped)
def name_of_mapped(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`_get_name(func)`."""
    known = getattr(args[0].real_object(), "__name__", None)
    return tr.constant(known) if type(known) is str else _Name()


@handles(unstable.lazy_load_decompositions)
def lazy_load_decompositions(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """torch's own preparation, done once in a process, before fakes are active."""
    unstable.lazy_load_decompositions()
    return tr.constant(None)


@handles(unstable.remove_batch_dim)
def remove_batch_dim(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`_maybe_remove_batch_dim(name, result, level, batch_size, out_dim)`."""
    _, result, level, _, dim = args
    if not isinstance(level, _Removal):
        raise GraphBreak(ASKS_LEVEL)
    return level.of(tr, result, dim)


@handles(unstable.flat_vmap)
def flat_vmap(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`_flat_vmap(func, batch_size, flat_in_dims, flat_args, args_spec, out_dims, randomness, **kwargs)`."""
    function, size, in_dims, flat, spec, out_dims, randomness = args
    dims = [dim.as_constant() for dim in in_dims.unpack(tr)]
    given = flat.unpack(tr)
    batches = [one for one, dim in zip(given, dims, strict=True) if dim is not None]
    batched = [dim for dim in dims if dim is not None]
    examples = [_example(tr, one, dim) for one, dim in zip(batches, batched, strict=True)]
    firsts = iter(examples)
    operands = [one if dim is None else next(firsts) for one, dim in zip(given, dims, strict=True)]
    builder = examples[0].ref.builder
    nodes = [one.as_proxy() for one in examples]
    last = last_node(builder)
    level = Batched("vmap", tr.facts.body.level, size, randomness, last, batches, batched, examples)
    result = traced_body(tr, level, function, lambda: _unflattened(tr, operands, spec), kwargs)
    removal = _Removal()
    _unwrapped(tr, result, (out_dims, removal, size, function))
    body = extract_subgraph(builder, last, nodes, [one.as_proxy() for one in removal.found])
    settings = tuple(batched + [None] * len(body.captured)), tuple(removal.dims), randomness
    made = recorded_call(tr, vmapped, (body,), settings, batches)
    return _unwrapped(tr, result, (out_dims, _Removal(made), size, function))


def _unflattened(tr: Tracer, operands: Sequence[Value], spec: Value) -> list[Value]:
    arguments: Value = tr.call(tr.constant(unstable.tree_unflatten), (new_list(tr, [*operands]), spec), {})
    return arguments.unpack(tr)


def _example(tr: Tracer, batch: Value, dim: int) -> TensorValue:
    """Return the first example of a batch, without autograd history, as batched tensors report it."""
    assert isinstance(batch, TensorValue)
    size = batch.fake.shape[dim]
    if is_unbacked(size) or size == 0:
        raise GraphBreak(NO_EXAMPLE, batch.describe())
    detached = tr.call_torch("detach", (batch,), {}) if batch.fake.requires_grad else batch
    example = tr.call_torch("select", (detached, tr.constant(dim), tr.constant(0)), {})
    assert isinstance(example, TensorValue)
    return example


def _unwrapped(tr: Tracer, result: Value, rest: Sequence[Value]) -> Value:
    try:
        return tr.call(tr.constant(unstable.unwrap_batched), (result, *rest), {})
    except TracedRaise as error:
        raise GraphBreak(BODY_RAISES, error.value.describe()) from error
