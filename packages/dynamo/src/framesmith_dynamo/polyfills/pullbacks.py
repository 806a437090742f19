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
