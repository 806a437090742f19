"""The time of guards over many inputs: tensors, Python scalars, a dict, sizes that vary.

Whole calls through eager backends with next to no work in the graph, and dispatch alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.harness.candidates import available, wrap
from benchmarks.harness.timing import Row, compare, print_rows
from benchmarks.suites.calls.dispatch import compare_dispatch

SIZES = (6, 10, 17)


def sum_of_tensors(*tensors: torch.Tensor) -> torch.Tensor:
    """Uses the first and the last; every one is guarded."""
    return tensors[0] + tensors[-1] * len(tensors)


def scaled(x: torch.Tensor, *scalars: float) -> torch.Tensor:
    """Fifty scalars, all of which the result depends on."""
    return x * sum(scalars)


def from_dict(x: torch.Tensor, table: dict[str, Any]) -> torch.Tensor:
    """Reads every entry of a dict."""
    total = 0.0
    for value in table.values():
        total += value
    return x * total


def doubled_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Relates two sizes: y has twice as many rows as x. x has more than four."""
    if x.shape[0] > 4:
        x = x.relu()
    return torch.cat([x, x]) + y


def cases() -> list[tuple[str, Callable[..., torch.Tensor], tuple[Any, ...]]]:
    """Title, function, arguments."""
    x = torch.randn(4)
    return [
        ("20 tensor arguments", sum_of_tensors, tuple(torch.randn(4) for _ in range(20))),
        ("50 Python scalars", scaled, (x, *[float(i) for i in range(50)])),
        ("a dict of 100 entries", from_dict, (x, {f"key{i}": float(i) for i in range(100)})),
    ]


def run() -> list[Row]:
    """All cases of this suite."""
    rows: list[Row] = []
    for title, fn, arguments in cases():
        settings: dict[str, dict[str, Any]] = {"eager": {}}
        steps = {
            name: functools.partial(wrap(name, fn, **settings.get(name, {"backend": "eager"})), *arguments)
            for name in available()
        }
        rows += compare(title, steps)
        print_rows(rows[-len(steps) :])
        rows += compare_dispatch(title, fn, arguments)
    calls = [(torch.randn(size, 4), torch.randn(2 * size, 4)) for size in SIZES]
    return rows + compare_dispatch("symbolic shapes, three calls", doubled_rows, *calls, dynamic=True)
