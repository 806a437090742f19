"""The rule of a `torch.autograd.Function` for `torch.vmap`: its staticmethod, traced on the batches it is called with.

Note [Batch dimensions]: a rule is called with whole batches and their dimensions, which depend on what the body has
computed before. So what it has recorded is copied, and run under `torch.vmap`: torch says what its tensors are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from framesmith_aten.graphs.transforms import unwrapped_batches
from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.graph.subgraphs import Subgraph, copied_subgraph, erase, extract_subgraph, last_node, nodes_after
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values.base import Args, Tracer, Value
from framesmith_dynamo.values.containers import TupleValue
from framesmith_dynamo.values.higher_order.subgraphs import Batched, in_body, recorded_call, under
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_dynamo.values.torch_api.tables import CUSTOM_AUTOGRAD
from framesmith_dynamo.values.transform_levels import Level


@dataclass(frozen=True)
class Rule:
    """A traced rule: its `vmap`, its subgraph, the dimensions of the tensors it was traced for, and of its results."""

    level: Batched
    body: Subgraph
    in_dims: tuple[int | None, ...]
    out_dims: tuple[int | None, ...]


def rule_of(tr: Tracer, cls: Value, given: Args, name: str) -> Rule | None:
    """Return the rule that torch will call for the tensors among `given`, or None: no `vmap` is around, or no rule."""
    level = tr.facts.body.level
    if level is None or not _own_rule(tr, cls, name):
        return None
    if tr.facts.body.backwards:
        raise GraphBreak(CUSTOM_AUTOGRAD, f"{name} has a rule for vmap, and is applied in a backward")
    tensors = [one for one in given if isinstance(one, TensorValue)]
    for one in level.outwards():
        if isinstance(one, Batched):
            before = last_node(tensors[0].ref.builder)
            found = _unwrapped(tr, one, tensors)
            dims = [dim.as_constant() for _, dim in found]
            if any(dim is not None for dim in dims):
                return _traced(tr, cls, one, given, [batch for batch, _ in found], dims, name)
            erase(tensors[0].ref.builder, nodes_after(before))
    return None


def _own_rule(tr: Tracer, cls: Value, name: str) -> bool:
    """Whether the class has a rule of its own. Breaks where it also asks for one, which torch refuses."""
    own = cls.as_constant().vmap is not torch.autograd.Function.vmap
    if own and cls.getattr_(tr, "generate_vmap_rule").bool_(tr):
        raise GraphBreak(CUSTOM_AUTOGRAD, f"{name} has a rule for vmap, and asks for one")
    return own


def _unwrapped(tr: Tracer, level: Batched, tensors: Sequence[TensorValue]) -> list[list[Value]]:
    """Return for each tensor the batch that it is an example of, and its dimension: see Note [Batch dimensions]."""
    builder = tensors[0].ref.builder
    examples = [one.as_proxy() for one in level.examples]
    body = copied_subgraph(builder, level.last, examples, [one.as_proxy() for one in tensors])
    settings = (*level.dims, *[None] * len(body.captured)), level.randomness
    return [one.unpack(tr) for one in recorded_call(tr, unwrapped_batches, (body,), settings, level.batches)]


def _traced(
    tr: Tracer, cls: Value, level: Batched, given: Args, batches: Sequence[Value], dims: Sequence[int | None], name: str
) -> Rule:
    nodes = [one.as_proxy() for one in batches]
    builder = next(one for one in batches if isinstance(one, TensorValue)).ref.builder
    last = last_node(builder)
    of_tensors, left = iter(dims), iter(batches)
    in_dims = [next(of_tensors) if isinstance(one, TensorValue) else None for one in given]
    operands = [next(left) if isinstance(one, TensorValue) else one for one in given]
    info = tr.call(tr.constant(unstable.VmapInfo), (level.size, level.randomness), {})
    with under(tr, Level("rule", level.outer)), in_body(tr, f"the vmap of {name}"):
        result = tr.call(cls.getattr_(tr, "vmap"), (info, tr.constant(tuple(in_dims)), *operands), {})
    results, out_dims = _results(tr, result, name)
    body = extract_subgraph(builder, last, nodes, [one.as_proxy() for one in results], modes=True)
    return Rule(level, body, tuple(dims), out_dims)


def _results(tr: Tracer, result: Value, name: str) -> tuple[list[TensorValue], tuple[int | None, ...]]:
    """Return the tensors that a rule gives, and their dimensions. Breaks where torch may refuse them."""
    parts = result.unpack(tr) if isinstance(result, TupleValue) else []
    if len(parts) != 2:
        raise GraphBreak(CUSTOM_AUTOGRAD, f"the vmap of {name} gives {result.describe()}")
    outputs = parts[0].unpack(tr) if isinstance(parts[0], TupleValue) else [parts[0]]
    given = parts[1].as_plain()
    dims = given if isinstance(given, tuple) else (given,) * len(outputs)
    found = [one for one in outputs if isinstance(one, TensorValue)]
    if len(found) != len(outputs) or len(dims) != len(found) or not all(type(dim) in (int, type(None)) for dim in dims):
        raise GraphBreak(CUSTOM_AUTOGRAD, f"the vmap of {name} gives {result.describe()}")
    return found, dims
