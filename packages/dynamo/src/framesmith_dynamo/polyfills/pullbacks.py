"""Functions that `torch.func` returns: that of `vjp`, and the wrappers of Jacobians."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from framesmith_aten.graphs.transforms import PullBack, pulled_back
from framesmith_dynamo.torch_adapter import unstable

DYNAMO_ATTRIBUTES = unstable.dynamo_attributes
tree_flatten, tree_unflatten = unstable.tree_flatten, unstable.tree_unflatten


def refuse_linear(why: str) -> None:
    """Has a handler, which breaks the graph: torch's own function is called, or raises its error."""
    raise NotImplementedError(why)


def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """`torch.func.linearize`: the results of a function, and their changes for tangents, by a pull-back of its own."""
    leaves, structure = tree_flatten(primals)
    pulling: Any = torch.func.vjp
    outputs, pull = pulling(func, *primals)
    zeros = _zeros_like(outputs)
    push = pulling(lambda cotangents: pull(cotangents), zeros)[1]

    def jvp_fn(*tangents: Any) -> Any:
        given, found = tree_flatten(tangents)
        if found != structure:
            refuse_linear("tangents have another structure than the arguments of the function")
        for one, primal in zip(given, leaves, strict=True):
            if not isinstance(one, torch.Tensor) or one.shape != primal.shape:
                refuse_linear("a tangent has another shape than its argument")
            if one.dtype != primal.dtype or one.device != primal.device:
                refuse_linear("a tangent has another type than its argument")
        return push(tangents)[0]

    return outputs, jvp_fn


def _zeros_like(results: Any) -> Any:
    leaves, structure = tree_flatten(results)
    return tree_unflatten([torch.zeros_like(one) for one in leaves], structure)


def functionalize(func: Callable[..., Any], *, remove: str = "mutations") -> Callable[..., Any]:
    """`torch.func.functionalize`: the same function, where its results are tensors of their own."""
    if remove != "mutations":
        refuse_linear("views are to be removed")

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return own_results(func, args, kwargs)

    named: Callable[..., Any] = wraps_without_dynamo(func)(wrapped)
    return named


def own_results(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Has a handler, which calls the function, and breaks the graph where a result shares memory."""
    return torch.func.functionalize(func)(*args, **kwargs)


def refuse_cotangents() -> None:
    """Has a handler, which breaks the graph: torch's own function raises its error."""
    raise NotImplementedError


def pullback(pulling: PullBack, results: Any, arguments: Any) -> Callable[..., Any]:
    """Return the function of cotangents, in the structure of `results`, to gradients, in that of `arguments`."""

    def wrapper(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        leaves, structure = tree_flatten(cotangents)
        if structure != results:
            refuse_cotangents()
        recorded = torch.is_grad_enabled() if create_graph is None else create_graph
        return tree_unflatten(pulled_back(pulling, retain_graph, recorded, *leaves), arguments)

    return wrapper


def wraps_without_dynamo(func: Any) -> Callable[[Any], Any]:
    """`_wraps_without_dynamo_attrs(func)`: the decorator `functools.wraps`, without attributes of torch.compile."""

    def decorate(wrapper: Any) -> Any:
        wrapped = functools.wraps(func)(wrapper)
        for name in DYNAMO_ATTRIBUTES:
            if hasattr(wrapped, name):
                delattr(wrapped, name)
        return wrapped

    return decorate
