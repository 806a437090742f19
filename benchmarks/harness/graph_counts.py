"""Graphs and breaks of a function that a candidate compiles; a graph then runs as it was captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import framesmith


def counted(name: str, function: Callable[..., Any], **settings: Any) -> tuple[Callable[..., Any], list[Any]]:
    """Return a function compiled by a candidate, and the list that gets each of its graphs."""
    graphs: list[Any] = []

    def backend(module: Any, inputs: Any) -> Any:
        graphs.append(module)
        return module.forward

    compiling: Any = torch.compile if name == "torch.compile" else framesmith.compile
    return compiling(function, backend=backend, **settings), graphs


def forget() -> None:
    """Drop what both compilers have compiled, and their counts."""
    import torch._dynamo.utils

    framesmith.reset()
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()


def breaks_of(name: str) -> int:
    """Return how many graph breaks a candidate has counted since `forget`."""
    if name == "torch.compile":
        import torch._dynamo.utils

        return sum(torch._dynamo.utils.counters["graph_break"].values())
    return int(framesmith.stats()["breaks"])
