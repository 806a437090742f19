"""`torch.func.grad` and `torch.func.grad_and_value`: one node with a subgraph of the function.

The function is traced on tensors without autograd history. Under the transform they have one, and code that reads it
breaks. Errors about arguments and results are torch's.
"""

from __future__ import annotations

from framesmith_aten.graphs.transforms import differentiated
from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.graph.subgraphs import extract_subgraph, last_node
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import handles
from framesmith_dynamo.values.containers import TupleValue
from framesmith_dynamo.values.higher_order.derivatives.arguments import (
    NOT_DIFFERENTIATED,
    Arguments,
    split_result,
    tree_of,
)
from framesmith_dynamo.values.higher_order.subgraphs import recorded_call
from framesmith_dynamo.values.tensors.tensor import TensorValue


@handles(unstable.grad_and_value)
def grad_and_value(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`grad_and_value_impl(func, argnums, has_aux, args, kwargs)`."""
    function, argnums, has_aux, given, named = args
    keywords = {key.as_constant(): value for key, value in _items(tr, named)}
    if any(isinstance(leaf, TensorValue) for value in keywords.values() for leaf in tree_of(tr, value).leaves):
        raise GraphBreak(NOT_DIFFERENTIATED, "keywords hold tensors")
    arguments = Arguments(tr, given.unpack(tr), argnums)
    examples = arguments.examples(tr)
    builder, nodes = examples[0].ref.builder, [one.as_proxy() for one in examples]
    last = last_node(builder)
    value, others = split_result(tr, arguments.traced(tr, "grad", function, examples, keywords), has_aux.bool_(tr))
    if not isinstance(value, TensorValue) or value.fake.dim() != 0:
        raise GraphBreak(NOT_DIFFERENTIATED, f"it gives {value.describe()}")
    body = extract_subgraph(builder, last, nodes, [one.as_proxy() for one in (value, *others.leaves)])
    positions = arguments.positions()
    settings = len(nodes), tuple(positions)
    made = recorded_call(tr, differentiated, (body,), settings, arguments.tensors)
    gradients, (value, *rest) = made[: len(positions)], made[len(positions) :]
    found = tree_of(tr, arguments.differentiated(tr)).again(tr, gradients)
    result = TupleValue([value, others.again(tr, rest)]) if has_aux.bool_(tr) else value
    return TupleValue([found, result])


def _items(tr: Tracer, mapping: Value) -> list[list[Value]]:
    return [pair.unpack(tr) for pair in mapping.call_method(tr, "items", (), {}).unpack(tr)]
