"""`torch.func.vjp` and `torch.func.jvp`: nodes with a subgraph of the function; Jacobians are torch's Python over them.

Note [Pull-backs]: the function that `vjp` returns is a value of the graph. The node `with_pullback(body, ...)` gives
the results and this value, `pulled_back(value, ...)` is recorded at each of its calls, in whichever body they are. So
the function is computed once, as in eager mode, with its random numbers. The value cannot leave the graph.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch

from framesmith_aten.graphs.transforms import pulled_back, pushed_forward, with_pullback
from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.graph.subgraphs import Subgraph, extract_subgraph, last_node
from framesmith_dynamo.polyfills import autograd_functional
from framesmith_dynamo.polyfills.pullbacks import pullback, refuse_cotangents, wraps_without_dynamo
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import handles, inlining
from framesmith_dynamo.values.containers import TupleValue
from framesmith_dynamo.values.higher_order.derivatives.arguments import (
    NOT_DIFFERENTIATED,
    Arguments,
    Tree,
    split_result,
    tree_of,
)
from framesmith_dynamo.values.higher_order.subgraphs import recorded_call
from framesmith_dynamo.values.transform_levels import Kind

handles(unstable.wraps_without_dynamo)(inlining(unstable.wraps_without_dynamo, wraps_without_dynamo))


for _name in ("vjp", "jvp", "vhp", "hvp", "jacobian", "hessian"):
    handles(getattr(torch.autograd.functional, _name))(
        inlining(getattr(torch.autograd.functional, _name), getattr(autograd_functional, _name))
    )


@handles(autograd_functional.refuse_functional)
def break_at_functional(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    raise GraphBreak(NOT_DIFFERENTIATED, f"torch.autograd.functional: {args[0].as_constant()}")


@handles(unstable.vjp_with_argnums)
def vjp(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`_vjp_with_argnums(func, *primals, argnums=None, has_aux=False)`."""
    function, *given = args
    has_aux = "has_aux" in kwargs and kwargs["has_aux"].bool_(tr)
    arguments = Arguments(tr, given, kwargs.get("argnums", tr.constant(None)))
    body, outputs, others = _body(tr, "grad", function, arguments, has_aux)
    settings = len(arguments.tensors), tuple(arguments.positions()), len(outputs.leaves)
    *made, pulling = recorded_call(tr, with_pullback, (body,), settings, arguments.tensors)
    results, rest = made[: len(outputs.leaves)], made[len(outputs.leaves) :]
    specs = outputs.spec, tree_of(tr, arguments.differentiated(tr)).spec
    found = [outputs.again(tr, results), tr.call(tr.constant(pullback), (pulling, *specs), {})]
    return TupleValue([*found, others.again(tr, rest)] if has_aux else found)


def _body(tr: Tracer, kind: Kind, function: Value, arguments: Arguments, has_aux: bool) -> tuple[Subgraph, Tree, Tree]:
    """Return the subgraph of a function, its results, and its auxiliary results, which are the last of the subgraph."""
    examples = arguments.examples(tr)
    builder, nodes = examples[0].ref.builder, [one.as_proxy() for one in examples]
    last = last_node(builder)
    result, others = split_result(tr, arguments.traced(tr, kind, function, examples, {}), has_aux)
    outputs = tree_of(tr, result)
    if not outputs.leaves or not outputs.are_tensors():
        raise GraphBreak(NOT_DIFFERENTIATED, f"it gives {result.describe()}")
    body = extract_subgraph(builder, last, nodes, [one.as_proxy() for one in (*outputs.leaves, *others.leaves)])
    return body, outputs, others


@handles(pulled_back)
def pull_back(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`pulled_back(pullback, retain_graph, create_graph, *cotangents)`, called by the polyfill."""
    pulling, retain_graph, create_graph, *cotangents = args
    if not Tree(cotangents, pulling).are_tensors():
        raise GraphBreak(NOT_DIFFERENTIATED, "a cotangent is no tensor")
    modes = retain_graph.bool_(tr), create_graph.bool_(tr)
    return tr.call_torch(pulled_back, (pulling, *modes, *cotangents), {})


@handles(refuse_cotangents)
def break_at_cotangents(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    raise GraphBreak(NOT_DIFFERENTIATED, "cotangents have another structure than the results of the function")


@handles(unstable.jvp_with_argnums)
def jvp(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`_jvp_with_argnums(func, primals, tangents, argnums, *, strict=False, has_aux)`."""
    function, primals, tangents, *rest = args
    argnums = rest[0] if rest else kwargs["argnums"]
    has_aux, strict = kwargs["has_aux"].bool_(tr), "strict" in kwargs and kwargs["strict"].bool_(tr)
    if not issubclass(primals.python_type(), tuple):
        raise GraphBreak(NOT_DIFFERENTIATED, f"the arguments of the function are {primals.describe()}")
    given = argnums.as_plain()
    if any(type(at) is int and at < 0 for at in (given if isinstance(given, tuple) else (given,))):
        raise GraphBreak(NOT_DIFFERENTIATED, "torch takes arguments numbered from the end for constants")
    arguments = Arguments(tr, primals.unpack(tr), argnums)
    changes = _tangents(tr, primals if argnums.is_none() else _chosen(tr, arguments), tangents)
    body, outputs, others = _body(tr, "jvp", function, arguments, has_aux)
    count = len(outputs.leaves)
    settings = len(arguments.tensors), tuple(arguments.positions()), count, strict
    made = recorded_call(tr, pushed_forward, (body,), settings, (*arguments.tensors, *changes))
    found = [outputs.again(tr, made[:count]), outputs.again(tr, made[count : 2 * count])]
    return TupleValue([*found, others.again(tr, made[2 * count :])] if has_aux else found)


def _chosen(tr: Tracer, arguments: Arguments) -> Value:
    chosen = arguments.differentiated(tr)
    return TupleValue([chosen]) if arguments.is_one else chosen


def _tangents(tr: Tracer, differentiated: Value, tangents: Value) -> Sequence[Value]:
    """Return the tensors of the tangents, which have the structure of the arguments that are differentiated."""
    wanted, given = tree_of(tr, differentiated), tree_of(tr, tangents)
    if not tr.call(tr.constant(operator.eq), (wanted.spec, given.spec), {}).bool_(tr) or not given.are_tensors():
        raise GraphBreak(NOT_DIFFERENTIATED, "tangents have another structure than the arguments of the function")
    return given.leaves
