"""`torch.func.grad` and `torch.func.grad_and_value`: one node with a subgraph of the function.

The function is traced on tensors without autograd history. Under the transform they have one, and code that reads it
breaks. Errors about arguments and results are torch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from framesmith_aten.graphs.transforms import differentiated
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.graph.subgraphs import extract_subgraph, last_node
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import handles
from framesmith_dynamo.values.containers import TupleValue, new_list
from framesmith_dynamo.values.higher_order.subgraphs import recorded_call, traced_body
from framesmith_dynamo.values.tensors.tensor import TensorValue

NOT_DIFFERENTIATED = register_break(
    "function-not-differentiated",
    what="torch.func.grad of a function is called in a way that a graph does not support",
    why="gradients of other objects than tensors are requested, keywords contain tensors, the result "
    "is no 0-d tensor, or "
    "gradients are switched off around the call",
    hint="see the error that follows; where there is none, pass tensors by position, with gradients enabled",
)


@dataclass(frozen=True)
class _Tree:
    """A flattened value: its leaves, and the structure to rebuild it."""

    leaves: list[Value]
    spec: Value

    def again(self, tr: Tracer, leaves: Sequence[Value]) -> Value:
        """Return the same structure with other leaves."""
        return tr.call(tr.constant(unstable.tree_unflatten), (new_list(tr, [*leaves]), self.spec), {})


def _tree(tr: Tracer, value: Value) -> _Tree:
    leaves, spec = tr.call(tr.constant(unstable.tree_flatten), (value,), {}).unpack(tr)
    return _Tree(leaves.unpack(tr), spec)


@handles(unstable.grad_and_value)
def grad_and_value(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`grad_and_value_impl(func, argnums, has_aux, args, kwargs)`."""
    function, argnums, has_aux, given, named = args
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        raise GraphBreak(NOT_DIFFERENTIATED, "gradients are switched off")
    trees = [_tree(tr, one) for one in given.unpack(tr)]
    keywords = {key.as_constant(): value for key, value in _items(tr, named)}
    if any(isinstance(leaf, TensorValue) for value in keywords.values() for leaf in _tree(tr, value).leaves):
        raise GraphBreak(NOT_DIFFERENTIATED, "keywords hold tensors")
    chosen = _chosen(argnums, len(trees))
    tensors = [leaf for tree in trees for leaf in tree.leaves if isinstance(leaf, TensorValue)]
    if not all(isinstance(leaf, TensorValue) for at in chosen for leaf in trees[at].leaves) or not tensors:
        raise GraphBreak(NOT_DIFFERENTIATED, "a gradient is requested of an object that is no tensor")
    examples = [tr.call_torch("detach", (one,), {}) for one in tensors]
    builder, nodes = tensors[0].ref.builder, [one.as_proxy() for one in examples]
    last = last_node(builder)
    tr.facts.body.differentiated += 1
    try:
        result = traced_body(tr, function, lambda: _with_examples(tr, trees, examples), keywords)
    finally:
        tr.facts.body.differentiated -= 1
    value, others = _results(tr, result, has_aux.bool_(tr))
    body = extract_subgraph(builder, last, nodes, [one.as_proxy() for one in (value, *others.leaves)])
    wanted = [_positions(trees, at) for at in chosen]
    settings = len(tensors), tuple(position for positions in wanted for position in positions)
    made = recorded_call(tr, differentiated, (body,), settings, tensors)
    gradients = [
        trees[at].again(tr, [made.pop(0) for _ in positions]) for at, positions in zip(chosen, wanted, strict=True)
    ]
    found = TupleValue(gradients) if issubclass(argnums.python_type(), tuple) else gradients[0]
    value = made.pop(0)
    if has_aux.bool_(tr):
        return TupleValue([found, TupleValue([value, others.again(tr, made)])])
    return TupleValue([found, value])


def _items(tr: Tracer, mapping: Value) -> list[list[Value]]:
    return [pair.unpack(tr) for pair in mapping.call_method(tr, "items", (), {}).unpack(tr)]


def _chosen(argnums: Value, count: int) -> list[int]:
    """Return the arguments to differentiate, which must match torch's choice."""
    given = argnums.as_plain()
    numbers = given if isinstance(given, tuple) else (given,)
    if not all(type(at) is int for at in numbers):
        raise GraphBreak(NOT_DIFFERENTIATED, f"argnums is {given!r}")
    positions = [at + count if at < 0 else at for at in numbers]
    if not positions or len({*positions}) != len(positions) or not all(0 <= at < count for at in positions):
        raise GraphBreak(NOT_DIFFERENTIATED, f"argnums is {given} for {count} arguments")
    return positions


def _with_examples(tr: Tracer, trees: Sequence[_Tree], examples: Sequence[Value]) -> list[Value]:
    """Return the arguments with examples in place of tensors."""
    left = iter(examples)
    return [
        tree.again(tr, [next(left) if isinstance(one, TensorValue) else one for one in tree.leaves]) for tree in trees
    ]


def _positions(trees: Sequence[_Tree], argument: int) -> list[int]:
    """Return the indices, among all tensors, of those in an argument."""
    counts = [sum(isinstance(one, TensorValue) for one in tree.leaves) for tree in trees]
    before = sum(counts[:argument])
    return [*range(before, before + counts[argument])]


def _results(tr: Tracer, result: Value, has_aux: bool) -> tuple[Value, _Tree]:
    """Return the differentiated value, and the auxiliary results."""
    none = TupleValue([])
    parts = [result, none]
    if has_aux and (not issubclass(result.python_type(), tuple) or len(parts := result.unpack(tr)) != 2):
        raise GraphBreak(NOT_DIFFERENTIATED, f"it gives {result.describe()}, with has_aux")
    value, others = parts[0], _tree(tr, parts[1])
    if not isinstance(value, TensorValue) or value.fake.dim() != 0:
        raise GraphBreak(NOT_DIFFERENTIATED, f"it gives {value.describe()}")
    if not all(isinstance(one, TensorValue) for one in others.leaves):
        raise GraphBreak(NOT_DIFFERENTIATED, "it gives other things than tensors")
    return value, others
