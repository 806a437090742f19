"""Graphs and breaks of a function that a candidate compiles; a graph then runs as it was captured."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch

import framesmith
from benchmarks.harness.timing import in_fresh_process


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


def print_graphs(suite: str, programs: Iterable[str], uses: Iterable[str]) -> None:
    """Print the graphs and breaks of framesmith and of torch.compile for each program in each use.

    The suite's module counts them: `graphs_of(candidate, program, use)`, for its `USES`. Each program has a process.
    """
    print(f"{'graphs, breaks: framesmith | torch.compile':44}{''.join(f'{use:>26}' for use in uses)}")
    for program in programs:
        code = f"from {__name__} import line_of; print(line_of({suite!r}, {program!r}))"
        print(in_fresh_process(code), flush=True)


def line_of(suite: str, program: str) -> str:
    """Return the line of a program in the table of graphs."""
    warnings.simplefilter("ignore")
    module, candidates = importlib.import_module(suite), ("framesmith", "torch.compile")
    found = [" | ".join(module.graphs_of(one, program, use) for one in candidates) for use in module.USES.values()]
    return f"{program:44}{''.join(f'{one:>26}' for one in found)}"
