"""Dispatch alone: graphs return what was computed beforehand, so that a call is guards, input loading and dispatch.

Both compilers take the same backend. Eager has no such row: there is nothing it could leave out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import framesmith
from benchmarks.harness.candidates import available, wrap
from benchmarks.harness.timing import Row, compare, print_rows

Function = Callable[..., Any]


class Precomputed:
    """A backend for either compiler whose graphs do nothing; `graphs` counts them."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., tuple[torch.Tensor, ...]]:
        self.graphs += 1
        outputs = outputs_for(gm)
        return lambda *inputs: outputs


def outputs_for(gm: torch.fx.GraphModule) -> tuple[torch.Tensor, ...]:
    """As many tensors as the graph returns; nobody looks at them."""
    [output] = (node for node in gm.graph.nodes if node.op == "output")
    return tuple(torch.zeros(()) for _ in output.args[0])


def compilers() -> list[str]:
    """The candidates that dispatch."""
    return [name for name in available() if name != "eager"]


def compare_dispatch(case: str, fn: Function, *calls: Sequence[Any], **settings: Any) -> list[Row]:
    """Time calls of `fn`, in inference, without its graph. RuntimeError if a candidate compiles more than once."""
    fresh_start()
    backends = {name: Precomputed() for name in compilers()}
    compiled = {name: wrap(name, fn, backend=backend, **settings) for name, backend in backends.items()}
    if len(calls) == 1:
        steps = {name: functools.partial(each, *calls[0]) for name, each in compiled.items()}
    else:
        steps = {name: functools.partial(call_each, each, calls) for name, each in compiled.items()}
    rows = compare_in_inference(f"{case}, dispatch alone", steps)
    check_graphs(case, backends)
    return rows


def call_each(fn: Function, calls: Sequence[Sequence[Any]]) -> None:
    """One call after the other."""
    for arguments in calls:
        fn(*arguments)


def compare_in_inference(case: str, steps: Mapping[str, Callable[[], object]]) -> list[Row]:
    """Time and print a case under one `no_grad`: entering it costs more than what is measured."""
    with torch.no_grad():
        rows = compare(case, steps)
    print_rows(rows)
    return rows


def fresh_start() -> None:
    """Forget what was compiled: candidates of different cases share code objects, and their entries are limited."""
    torch.compiler.reset()
    framesmith.reset()


def check_graphs(case: str, backends: Mapping[str, Precomputed]) -> None:
    """See that every call after the first was a hit: one graph each."""
    for name, backend in backends.items():
        if backend.graphs != 1:
            raise RuntimeError(f"{case}: {name} compiled {backend.graphs} graphs where one should serve all calls")
