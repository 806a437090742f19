"""Canonicalises a traced graph: one spelling for each operation, no dead code, no repeated computation."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from framesmith_aten.checks.plain_tensors import takes_numbers
from framesmith_aten.graphs.nodes import factory_options, is_pure, may_fail
from framesmith_aten.graphs.numbers import ScalarNodes, numbers_in, numbers_of
from framesmith_aten.layouts import is_contiguous
from framesmith_aten.meta import CHECKPOINT_PATH, PHASE
from framesmith_aten.operators import IDENTITY_VIEWS, arguments, is_mask, is_view
from framesmith_aten.symbolic import all_equal, has_symbols, is_assumed, is_the_same
from framesmith_guards.torch_adapter import OpOverload, aten

Rewrite = Callable[[fx.Node], "tuple[Any, tuple[Any, ...], dict[str, Any]] | None"]
"""Gives the new (target, args, kwargs) of a node that keeps its value, or None to decline.

Symbols among the arguments become nodes.
"""


def _rank(node: fx.Node) -> int:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return len(source.meta["val"].shape)


def _t(node: fx.Node) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    return aten.permute.default, (node.args[0], [1, 0] if _rank(node) == 2 else list(range(_rank(node)))), {}


def _transpose(node: fx.Node) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    rank = _rank(node)
    order = list(range(rank))
    if rank:
        dims: Any = node.args[1:3]
        first, second = (dim % rank for dim in dims)
        order[first], order[second] = order[second], order[first]
    return aten.permute.default, (node.args[0], order), {}


def _shape_of_result(node: fx.Node) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    return aten.view.default, (node.args[0], list(node.meta["val"].shape)), {}


def _full(value: float) -> Rewrite:
    def rewrite(node: fx.Node) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
        val = node.meta["val"]
        if not is_contiguous(val) or not takes_numbers(val.dtype):
            return None
        fill: Any = bool(value) if val.dtype is torch.bool else value
        return aten.full.default, (list(val.shape), fill), factory_options(val)

    return rewrite


def _filled(node: fx.Node) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    val = node.meta["val"]
    if not is_contiguous(val) or isinstance(node.args[1], fx.Node):
        return None
    return aten.full.default, (list(val.shape), node.args[1]), factory_options(val)


def _rsub(node: fx.Node) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    if node.target is not aten.rsub.Tensor or len(node.args) > 2 or node.kwargs:
        return None
    return aten.sub.Tensor, (node.args[1], node.args[0]), {}


def _permute(node: fx.Node) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    inner: Any = node.args[0]
    if inner.target is not aten.permute.default:
        return None
    outer: Any = node.args[1]
    first = [dim % len(outer) for dim in inner.args[1]]
    return aten.permute.default, (inner.args[0], [first[dim % len(outer)] for dim in outer]), {}


def _view(node: fx.Node) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    inner: Any = node.args[0]
    if inner.target is not aten.view.default or not is_contiguous(inner.args[0].meta["val"]):
        return None
    return aten.view.default, (inner.args[0], node.args[1]), {}


def _batch_norm_backward(node: fx.Node) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """Drop the running statistics in training, which reads none; then they need not be saved."""
    args = list(node.args)
    if not args[7] or args[3] is None:
        return None
    args[3] = args[4] = None
    return node.target, tuple(args), dict(node.kwargs)


def _random_within(node: fx.Node) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """The same numbers by an operator whose name Python can write ("from" is a keyword)."""
    like, low, high = (*node.args, None)[:3]
    return None if high is None else (aten.randint_like.low_dtype, (like, low, high), {})


#: Operators that are another spelling of a core one.
REWRITES: dict[Any, Rewrite] = {
    aten.t.default: _t,
    aten.transpose.int: _transpose,
    aten.permute.default: _permute,
    aten.view.default: _view,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten._unsafe_view.default: _shape_of_result,
    aten._reshape_alias.default: _shape_of_result,
    aten.zeros.default: _full(0),
    aten.ones.default: _full(1),
    aten.zeros_like.default: _full(0),
    aten.ones_like.default: _full(1),
    aten.new_zeros.default: _full(0),
    aten.new_ones.default: _full(1),
    aten.zero.default: _full(0),
    aten.fill.Scalar: _filled,
    aten.rsub.Tensor: _rsub,
    getattr(aten.random, "from"): _random_within,
}


def canonicalise(graph: fx.Graph) -> None:
    """Apply REWRITES until they decline, and drop views that show all of a tensor, or one that was stacked."""
    numbers: ScalarNodes | None = None
    returned: dict[fx.Node, fx.Node] = {}  # for each view among the results, the node to return instead
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        tried: set[Any] = set()
        while node.target not in tried and (rewrite := REWRITES.get(node.target)) is not None:
            tried.add(node.target)
            if (change := rewrite(node)) is not None:
                value = node.meta["val"]
                if isinstance(value, torch.Tensor) and has_symbols(value):
                    numbers = numbers or numbers_in(graph)
                    change = numbers.in_place_of_symbols(change)
                node.target, node.args, node.kwargs = change
        if (stacked := _stacked(node)) is not None:
            node.replace_all_uses_with(stacked, lambda user: user.op != "output")
        elif _is_identity_view(node):
            (shown,) = node.all_input_nodes[:1]
            node.replace_all_uses_with(shown, lambda user: user.op != "output")
            if node.users:
                returned[node] = shown
            else:
                graph.erase_node(node)
    if returned:
        _return_instead(graph, returned)


def _return_instead(graph: fx.Graph, instead: Mapping[fx.Node, fx.Node]) -> None:
    """Replace results all at once, since one argument may hold thousands, and erase the old nodes."""
    output = graph.output_node()
    output.args = fx.map_arg(output.args, lambda node: instead.get(node, node))
    for node in instead:
        graph.erase_node(node)


def _is_identity_view(node: fx.Node) -> bool:
    """Whether the node is a view of all of its operand, with the same layout."""
    if node.target in IDENTITY_VIEWS:
        return True
    before = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], fx.Node) else None
    after = node.meta.get("val")
    if not is_view(node.target) or not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    return element_type(before) == element_type(after) and _has_same_layout(before, after)


def _stacked(node: fx.Node) -> fx.Node | None:
    """Return the tensor that the node takes out of a stack, if it has the same strides before; else None."""
    stack, dim, at = _taken_part(node)
    if not isinstance(stack, fx.Node) or stack.target is not aten.stack.default or not isinstance(at, int):
        return None
    operands, along = arguments(aten.stack.default, stack.args, stack.kwargs).values()
    rank = stack.meta["val"].dim()
    if dim % rank != along % rank:
        return None
    found: fx.Node = operands[at]
    before, after = found.meta["val"], node.meta["val"]
    same = element_type(before) == element_type(after) and before.layout is torch.strided
    return found if same and _has_same_strides(before, after) else None


def _taken_part(node: fx.Node) -> tuple[Any, ...]:
    """Return the tensor, the dimension and the position of which the node takes a part; None where it takes none."""
    if node.target is aten.select.int:
        return tuple(arguments(aten.select.int, node.args, node.kwargs).values())
    parts = node.args[0] if node.target is operator.getitem else None
    if isinstance(parts, fx.Node) and parts.target is aten.unbind.int:
        return (*arguments(aten.unbind.int, parts.args, parts.kwargs).values(), node.args[1])
    return None, None, None


def element_type(value: torch.Tensor) -> tuple[Any, ...]:
    return value.dtype, value.layout, value.is_conj(), value.is_neg()


def _has_same_layout(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether two tensors of one memory have the same layout at every call."""
    if before.layout is not torch.strided or len(before.shape) != len(after.shape):
        return False
    if any(map(is_assumed, numbers_of(after).values())):
        return False
    return _has_same_strides(before, after) and all_equal([before.storage_offset()], [after.storage_offset()])


def _has_same_strides(before: torch.Tensor, after: torch.Tensor) -> bool:
    return all_equal(before.shape, after.shape) and all_equal(before.stride(), after.stride())


def is_removable(node: fx.Node) -> bool:
    """Whether the unused node may be erased: pure, and no call of the forward pass that can raise in eager mode."""
    return is_pure(node) and not (PHASE.get(node) != "backward" and may_fail(node))


def eliminate_dead(graph: fx.Graph) -> None:
    """Erase unused nodes, except inputs and those that advance a random generator, mutate or may raise."""
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output") and is_removable(node):
            graph.erase_node(node)


def merge_equal(graph: fx.Graph) -> None:
    """Merge equal pure calls. Separate results of the graph may then be one node, or views of one.

    Unbacked symbols of merged results are merged, too; so are the lengths that one mask selects of two tensors, and the
    lengths of slices with the same bounds. A checkpoint's nodes are merged with each other alone, and those
    of its backward pass, too.
    """
    seen: dict[Any, fx.Node] = {}
    chosen: dict[Any, Any] = {}
    for node in graph.nodes:
        if node.op != "call_function" or not is_pure(node):
            continue
        path = CHECKPOINT_PATH.get(node)
        key = key_of((node.target, node.args, node.kwargs, path, None if path is None else PHASE.get(node)))
        other = seen.setdefault(key, node)
        if other is not node:
            is_the_same(node.meta.get("val"), other.meta.get("val"))
            node.replace_all_uses_with(other)
            graph.erase_node(node)
        elif (found := _length_key(node)) is not None:
            by, dim = found
            length = node.meta["val"].shape[dim]
            is_the_same(length, chosen.setdefault(by, length))


def _length_key(node: fx.Node) -> tuple[Any, int] | None:
    """Return a key of equal unbacked lengths, and the dimension with that length; None where there is none.

    The key is a mask that alone selects elements, or the bounds of a slice.
    """
    value = node.meta["val"]
    if not isinstance(node.target, OpOverload) or not isinstance(value, torch.Tensor) or not has_symbols(value):
        return None
    given = arguments(node.target, node.args, node.kwargs)
    if "indices" in given and torch.Tag.dynamic_output_shape in node.target.tags:
        masks = [(index, dim) for dim, index in enumerate(given["indices"]) if index is not None]
        return masks[0] if len(masks) == 1 and is_mask(masks[0][0].meta["val"]) else None
    if is_view(node.target) and {"dim", "start", "end", "step"} <= given.keys():
        source, dim = node.args[0], given["dim"]
        assert isinstance(source, fx.Node)
        dim %= source.meta["val"].dim()
        bounds = [given[name] for name in ("start", "end", "step")]
        return key_of((bounds, str(source.meta["val"].shape[dim]))), dim
    return None


def key_of(value: Any) -> Any:
    """Return a hashable, equal only for arguments of equal type and value (0, 0.0, -0.0 and False are four)."""
    if isinstance(value, (tuple, list)):
        return ("sequence", *(key_of(item) for item in value))
    if isinstance(value, dict):
        return ("dict", *((name, key_of(item)) for name, item in value.items()))
    if isinstance(value, float):
        return (float, value.hex())
    if isinstance(value, complex):
        return (complex, value.real.hex(), value.imag.hex())
    if isinstance(value, slice):
        return (slice, value.start, value.stop, value.step)
    return (type(value), value)
