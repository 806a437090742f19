"""`scan`, `associative_scan` and `map` of torch in a trace: one node that runs a body for each slice.

The dimension is moved to the front by views, and that of the results back, as torch's Python does; a scan in reverse is
a setting of the node, where torch flips operands and results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from framesmith_aten.graphs import control_flow
from framesmith_aten.symbolic import equal, is_unbacked
from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.polyfills import scans as polyfills
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import handles, named
from framesmith_dynamo.values.containers import TupleValue, new_list
from framesmith_dynamo.values.higher_order.control_flow import (
    CONTROL_FLOW,
    Body,
    copies,
    refuse_aliases,
    refuse_other_types,
    refuse_transforms,
    tensors,
    traced,
)
from framesmith_dynamo.values.higher_order.derivatives.arguments import Tree, tree_of
from framesmith_dynamo.values.higher_order.subgraphs import recorded_call
from framesmith_dynamo.values.tensors.tensor import TensorValue

#: Whether torch's scan gives stacks along the scanned dimension, by a function in it: a release has them in front.
MOVES_BACK: Final = any(
    "movedim" in getattr(one, "co_names", ())
    for one in getattr(getattr(unstable.scan, "__code__", None), "co_consts", ())
)


@handles(unstable.associative_scan)
def associative_scan(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`associative_scan(combine_fn, xs, dim, reverse=False, combine_mode="pointwise")`."""
    names = ("combine_fn", "xs", "dim", "reverse", "combine_mode")
    given = named(tr, unstable.associative_scan, args, kwargs, names, 3)
    mode = given["combine_mode"].as_plain() if "combine_mode" in given else "pointwise"
    if mode != "generic":
        raise GraphBreak(CONTROL_FLOW, f"combine_mode is {mode!r}")
    tree = tree_of(tr, given["xs"])
    xs = tensors(tree.leaves, "scanned values")
    dim, reverse = _dim(given["dim"], xs), _flag(given.get("reverse"))
    moved = _moved(tr, xs, dim, 0)
    length = moved[0].fake.shape[0]
    if not all(equal(one.fake.shape[0], length) for one in moved):
        raise GraphBreak(CONTROL_FLOW, "lengths differ")
    if tr.facts.body.level:
        _joining(tr, given["combine_fn"], tree, moved)  # for its checks
        settings = tr.constant(dim), tr.constant(reverse)
        return tr.call(tr.constant(polyfills.associative_scan), (given["combine_fn"], given["xs"], *settings), {})
    results: Sequence[Value] = [_flipped(tr, one) for one in moved] if reverse else moved
    if not equal(length, 1):
        body = _joining(tr, given["combine_fn"], tree, moved)
        results = recorded_call(tr, control_flow.associative_scan, (body.graph,), (len(moved), reverse), moved)
    return tree.again(tr, _moved(tr, tensors(results, "results"), 0, dim))


def _joining(tr: Tracer, function: Value, tree: Tree, xs: Sequence[TensorValue]) -> Body:
    """Trace the function that joins two groups of slices."""
    groups = [_slices(tr, xs), _slices(tr, xs)]
    body = traced(tr, function, lambda: [tree.again(tr, group) for group in groups], [*groups[0], *groups[1]])
    refuse_other_types(groups[1], tensors(body.returned.leaves, "results of a function"), strides=False)
    return body


@handles(unstable.scan)
def scan(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`scan(combine_fn, init, xs, *, dim=0, reverse=False)`."""
    refuse_transforms(tr, ("vmap",))
    given = named(tr, unstable.scan, args, kwargs, ("combine_fn", "init", "xs", "dim", "reverse"), 3)
    inits, sliced = tree_of(tr, given["init"]), tree_of(tr, given["xs"])
    if not sliced.leaves:
        return TupleValue([given["init"], new_list(tr, [])])
    if not inits.leaves or len(args) > 3:
        raise GraphBreak(CONTROL_FLOW, "nothing is carried, or settings of a scan are given by position")
    carried, xs = tensors(inits.leaves, "carried values"), tensors(sliced.leaves, "scanned values")
    dim = _dim(given["dim"], xs) if "dim" in given else _dim(tr.constant(0), xs)
    moved, reverse = _moved(tr, xs, dim, 0), _flag(given.get("reverse"))
    before, slices = copies(tr, carried), _slices(tr, moved)

    def arguments() -> list[Value]:
        return [inits.again(tr, before), sliced.again(tr, slices)]

    body = traced(tr, given["combine_fn"], arguments, [*before, *slices])
    refuse_aliases(body, [*before, *slices])
    after = _next_carried(tr, body)
    refuse_other_types(carried, after)
    if [*after] != body.results[: len(after)]:
        raise GraphBreak(CONTROL_FLOW, "a function gives no pair of carried values and results")
    settings = (len(carried), len(moved)), reverse
    made = recorded_call(tr, control_flow.scan, (body.graph,), settings, (*carried, *moved))
    last, stacks = made[: len(carried)], tensors(made[len(carried) :], "results")
    return body.again(tr, [*last, *(_moved_back(tr, one, dim) for one in stacks)])


def _next_carried(tr: Tracer, body: Body) -> list[TensorValue]:
    """Return the carried values among what the body of a scan gives, a pair of these and of its results."""
    pair = body.returned.again(tr, body.returned.leaves)
    parts = pair.unpack(tr) if issubclass(pair.python_type(), (tuple, list)) else ()
    if len(parts) != 2:
        raise GraphBreak(CONTROL_FLOW, "a function gives no pair of carried values and results")
    return tensors(tree_of(tr, parts[0]).leaves, "carried values")


@handles(unstable.map)
def map_(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`map(f, xs, *args)`: a scan that carries nothing."""
    refuse_transforms(tr, ("vmap",))
    if kwargs or len(args) < 2:
        raise GraphBreak(CONTROL_FLOW, "map is given keywords, or nothing to map")
    function, mapped, *rest = args
    tree = tree_of(tr, mapped)
    xs = tensors(tree.leaves, "mapped values")
    _dim(tr.constant(0), xs)
    if not all(equal(one.fake.shape[0], xs[0].fake.shape[0]) for one in xs):
        raise GraphBreak(CONTROL_FLOW, "lengths differ")
    slices = _slices(tr, xs)
    body = traced(tr, function, lambda: [tree.again(tr, slices), *rest], slices)
    refuse_aliases(body, slices)
    if not body.results:
        raise GraphBreak(CONTROL_FLOW, "a function returns no tensors")
    return body.again(tr, recorded_call(tr, control_flow.scan, (body.graph,), ((0, len(xs)), False), xs))


def _dim(given: Value, xs: Sequence[TensorValue]) -> int:
    """Return the scanned dimension, counted from the front. Breaks where torch rejects it, or it has no elements."""
    dim = given.as_plain()
    rank = xs[0].fake.dim() if xs else 0
    if type(dim) is not int or not -rank <= dim < rank:
        raise GraphBreak(CONTROL_FLOW, f"there is no dimension {dim!r} to scan")
    dim %= rank
    if any(one.fake.dim() <= dim or is_unbacked(one.fake.shape[dim]) or one.fake.shape[dim] == 0 for one in xs):
        raise GraphBreak(CONTROL_FLOW, "a tensor has no slices, or an unbacked number of them")
    return dim


def _flag(given: Value | None) -> bool:
    flag = False if given is None else given.as_plain()
    if type(flag) is not bool:
        raise GraphBreak(CONTROL_FLOW, f"reverse is {flag!r}")
    return flag


def _slices(tr: Tracer, xs: Sequence[TensorValue]) -> list[TensorValue]:
    """Return the first slice of each tensor, an example of all."""
    return tensors([tr.call_torch("select", (one, tr.constant(0), tr.constant(0)), {}) for one in xs], "slices")


def _moved(tr: Tracer, values: Sequence[TensorValue], source: int, to: int) -> list[TensorValue]:
    moving = tr.constant(source), tr.constant(to)
    return tensors([tr.call_torch("movedim", (one, *moving), {}) for one in values], "moved values")


def _moved_back(tr: Tracer, stack: TensorValue, dim: int) -> TensorValue:
    stays = dim == 0 or dim >= stack.fake.dim() or not MOVES_BACK
    return stack if stays else _moved(tr, [stack], 0, dim)[0]


def _flipped(tr: Tracer, one: TensorValue) -> TensorValue:
    return tensors([tr.call_torch("flip", (one, tr.constant((0,))), {})], "flipped values")[0]
