"""Kernels alone: every case of the registry, each candidate's results compared with eager's before it is timed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from benchmarks.harness.agreement import check, in_float64, tensors
from benchmarks.harness.candidates import available, wrap
from benchmarks.harness.device import building
from benchmarks.harness.measuring import ROUNDS, measure
from benchmarks.harness.registry import matching
from benchmarks.harness.summary import print_summary
from benchmarks.harness.timing import Row, Step
from benchmarks.kernel_cases import CASES, Case
from benchmarks.models.floor import bandwidth, print_shares
from benchmarks.models.selection import Selection
from benchmarks.models.zoo import DTYPES

Function = Callable[..., Any]

#: A graph break, and a failure inside a compiler, is a reason why a candidate cannot run a case.
SETTINGS: dict[str, dict[str, bool]] = {
    "eager": {},
    "torch.compile": {"fullgraph": True},
    "framesmith": {"fullgraph": True, "strict": True},
}


def inputs_of(case: Case, dtype: str) -> tuple[Any, ...]:
    """The same inputs for every candidate, each time in memory of their own."""
    torch.manual_seed(0)
    with building():
        return case.make(DTYPES[dtype])


def make_step(case: Case, call: Function, inputs: tuple[Any, ...]) -> Function:
    """Forward under no_grad; or forward and backward, which gives the gradients of the floating inputs, too."""
    if not case.backward:
        return torch.no_grad()(functools.partial(call, *inputs))
    leaves = [x.requires_grad_() for x in inputs if isinstance(x, torch.Tensor) and x.is_floating_point()]
    out: Any = case.fn(*inputs)
    torch.manual_seed(1)
    cotangent = torch.randn(out.shape, device=out.device).to(out.dtype)

    def train() -> tuple[torch.Tensor, ...]:
        out = call(*inputs)
        return out.detach(), *torch.autograd.grad(out, leaves, cotangent)

    return train


def prepare(case: Case, dtype: str, name: str) -> Step:
    """A candidate's step, called once, so that it is compiled, and checked: its results, and its inputs after it."""

    inputs = inputs_of(case, dtype)
    step = make_step(case, wrap(name, case.fn, **SETTINGS[name]), inputs)
    check_results(case, dtype, step(), inputs)
    return step


def check_results(case: Case, dtype: str, results: object, inputs: tuple[Any, ...]) -> None:
    """An AssertionError where a step's results, or its inputs after it, are not eager's."""

    def eager(convert: Callable[[object], object]) -> list[torch.Tensor]:
        others = tree_map(convert, inputs_of(case, dtype))
        return tensors((make_step(case, case.fn, others)(), others))

    if not case.random:
        check(tensors((results, inputs)), eager(lambda x: x), lambda: eager(in_float64), case.scale)


def title(case: Case, dtype: str) -> str:
    """The case as tables call it: its name, the shapes of its tensors, how many tensors are in its lists, its type."""
    sizes = []
    with torch.device("meta"):
        inputs = case.make(DTYPES[dtype])
    for one in inputs:
        is_tensor = isinstance(one, torch.Tensor)
        sizes.append("x".join(map(str, one.shape)) if is_tensor else f"{len(one)} tensors")
    return f"{case.name} {' '.join(dict.fromkeys(sizes))}, {dtype}"


def bytes_moved(case: Case, dtype: str) -> int:
    """Return the bytes that have to be read and written: each input once, each result and each changed input once."""
    inputs = inputs_of(case, dtype)
    read, step = tensors(inputs), make_step(case, case.fn, inputs)
    before = [x._version for x in read]
    written = tensors(step()) + [x for x, version in zip(read, before, strict=True) if x._version != version]
    return sum(x.nbytes for x in read + written)


def run(selection: Selection | None = None) -> list[Row]:
    """All cases asked for, and what they come to."""
    selection = selection or Selection()
    rows: list[Row] = []
    for case in matching(CASES, selection.only, "kernel"):
        for dtype in case.dtypes:
            if dtype not in selection.dtypes:
                continue
            names = selection.among(available())
            found = measure(
                title(case, dtype), names, functools.partial(prepare, case, dtype), rounds=selection.rounds_or(ROUNDS)
            )
            if selection.floor:
                print_shares(bytes_moved(case, dtype) / bandwidth(), found)
            selection.keep(found)
            rows += found
    print_summary(rows)
    return rows
