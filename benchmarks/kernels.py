"""Kernels alone: pointwise chains, row reductions and full reductions on tensors larger than the caches."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from benchmarks.candidates import available, wrap
from benchmarks.harness import Row, compare, print_rows
from benchmarks.programs import gelu_layer_norm, mse, pointwise, softmax_rows

Case = tuple[str, Callable[..., torch.Tensor], Callable[[], tuple[torch.Tensor, ...]]]

CASES: list[Case] = [
    ("gelu(x*y+1).sin()*sigmoid(y), 1M floats", pointwise, lambda: (torch.randn(1 << 20), torch.randn(1 << 20))),
    ("the same on 8 floats", pointwise, lambda: (torch.randn(8), torch.randn(8))),
    ("layer_norm(gelu(x)), 2048x1024", gelu_layer_norm, lambda: (torch.randn(2048, 1024),)),
    ("softmax(x/8), 4096x512", softmax_rows, lambda: (torch.randn(4096, 512),)),
    ("mean((x-y)^2), 1M floats", mse, lambda: (torch.randn(1 << 20), torch.randn(1 << 20))),
]


def run() -> list[Row]:
    """All cases of this suite."""
    rows: list[Row] = []
    for title, fn, make in CASES:
        torch.manual_seed(0)
        inputs = make()
        steps = {name: functools.partial(wrap(name, fn), *inputs) for name in available()}
        rows += compare(title, steps)
        print_rows(rows[-len(steps) :])
    return rows
