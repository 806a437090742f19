"""`torch.func.linearize` over pull-backs, and `functionalize`, of which a graph sees the function alone."""

from __future__ import annotations

import torch

from framesmith_aten.layouts import storage_id
from framesmith_aten.recording import effects_of
from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.graph.subgraphs import last_node, nodes_after
from framesmith_dynamo.polyfills import pullbacks
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import handles, inlining
from framesmith_dynamo.values.containers import TupleValue
from framesmith_dynamo.values.higher_order.derivatives.arguments import NOT_DIFFERENTIATED, tree_of
from framesmith_dynamo.values.tensors.tensor import TensorValue

handles(torch.func.functionalize)(inlining(torch.func.functionalize, pullbacks.functionalize))


@handles(pullbacks.refuse_linear)
def break_at_linear(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    raise GraphBreak(NOT_DIFFERENTIATED, str(args[0].as_constant()))


@handles(torch.func.linearize)
def linearize(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`linearize(func, *primals)`.

    Torch calls the function twice, and its linear function has a part of the history of what it captures.
    """
    if tr.facts.body.level:
        raise GraphBreak(NOT_DIFFERENTIATED, "linearize under a transform")
    for one in tree_of(tr, TupleValue([*args])).leaves:
        if isinstance(one, TensorValue):
            one.as_proxy()  # inputs come before what is looked at
    last = last_node(tr.builder)
    found = inlining(torch.func.linearize, pullbacks.linearize)(tr, args, kwargs)
    if any(effects_of(node).random for node in nodes_after(last)):
        raise GraphBreak(NOT_DIFFERENTIATED, "a linearized function draws random numbers")
    results = tree_of(tr, found.unpack(tr)[0]).leaves
    if any(isinstance(one, TensorValue) and one.fake.requires_grad for one in results):
        raise GraphBreak(NOT_DIFFERENTIATED, "a linearized function has results with a history")
    return found


@handles(pullbacks.own_results)
def own_results(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """Call a function that is functionalized: under torch's transform, writes to tensors give new ones."""
    function, given, names = args
    keywords = {pair.unpack(tr)[0].as_constant(): pair.unpack(tr)[1] for pair in _items(tr, names)}
    operands = [one for one in tree_of(tr, TupleValue([given, names])).leaves if isinstance(one, TensorValue)]
    for one in operands:
        one.as_proxy()
    last = last_node(tr.builder)
    result = tr.call(function, given.unpack(tr), keywords)
    memory = {storage_id(one.fake) for one in operands if one.fake.layout is torch.strided}
    written = [one for node in nodes_after(last) for one in effects_of(node).written]
    if any(one.layout is torch.strided and storage_id(one) in memory for one in written):
        raise GraphBreak(NOT_DIFFERENTIATED, "a functionalized function writes to its arguments")
    for fake in [leaf.fake for leaf in tree_of(tr, result).leaves if isinstance(leaf, TensorValue)]:
        if fake.layout is not torch.strided or not fake.is_contiguous() or storage_id(fake) in memory:
            raise GraphBreak(NOT_DIFFERENTIATED, "a functionalized function returns tensors that share memory")
        memory.add(storage_id(fake))
    return result


def _items(tr: Tracer, mapping: Value) -> list[Value]:
    return mapping.call_method(tr, "items", (), {}).unpack(tr)
