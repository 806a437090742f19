"""Kernels alone: every case of the registry, each candidate's results compared with eager's before it is timed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from benchmarks.candidates import available, wrap
from benchmarks.floor import bandwidth, print_shares
from benchmarks.harness import Row, Step
from benchmarks.kernel_cases import CASES, Case
from benchmarks.measuring import measure
from benchmarks.registry import matching
from benchmarks.selection import Selection
from benchmarks.summary import print_summary
from benchmarks.zoo import DTYPES

Function = Callable[..., Any]

#: A graph break, and a failure inside a compiler, is a reason why a candidate cannot run a case.
SETTINGS: dict[str, dict[str, bool]] = {
    "eager": {},
    "torch.compile": {"fullgraph": True},
    "framesmith": {"fullgraph": True, "strict": True},
}

#: How far results may be from eager's, relatively and absolutely; those of other types are the same.
TOLERANCES = {
    torch.float32: (1e-4, 1e-5),
    torch.bfloat16: (3e-2, 3e-2),
    torch.float64: (1e-9, 1e-9),
    torch.complex64: (1e-4, 1e-5),
}


def inputs_of(case: Case, dtype: str) -> tuple[Any, ...]:
    """The same inputs for every candidate, each time in memory of their own."""
    torch.manual_seed(0)
    return case.make(DTYPES[dtype])


def make_step(case: Case, call: Function, inputs: tuple[Any, ...]) -> Function:
    """Forward under no_grad; or forward and backward, which gives the gradients of the floating inputs, too."""
    if not case.backward:
        return torch.no_grad()(functools.partial(call, *inputs))
    leaves = [x.requires_grad_() for x in inputs if isinstance(x, torch.Tensor) and x.is_floating_point()]
    cotangent = torch.randn_like(case.fn(*inputs))

    def train() -> tuple[torch.Tensor, ...]:
        out = call(*inputs)
        return out.detach(), *torch.autograd.grad(out, leaves, cotangent)

    return train


def tensors(tree: object) -> list[torch.Tensor]:
    """Those in a tree of tuples and lists."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def check(given: object, expected: object) -> None:
    """An AssertionError if results, or the inputs after the step, are not eager's."""
    for one, other in zip(tensors(given), tensors(expected), strict=True):
        relative, absolute = TOLERANCES.get(other.dtype, (0.0, 0.0))
        torch.testing.assert_close(one, other, rtol=relative, atol=absolute, equal_nan=True)


def prepare(case: Case, dtype: str, name: str) -> Step:
    """A candidate's step, called once, so that it is compiled and checked."""
    inputs, others = inputs_of(case, dtype), inputs_of(case, dtype)
    step = make_step(case, wrap(name, case.fn, **SETTINGS[name]), inputs)
    given = step()
    if not case.random:
        check((given, inputs), (make_step(case, case.fn, others)(), others))
    return step


def title(case: Case, dtype: str) -> str:
    """The case as tables call it: its name, the shapes of its tensors, how many tensors are in its lists, its type."""
    sizes = []
    for one in inputs_of(case, dtype):
        is_tensor = isinstance(one, torch.Tensor)
        sizes.append("x".join(map(str, one.shape)) if is_tensor else f"{len(one)} tensors")
    return f"{case.name} {' '.join(dict.fromkeys(sizes))}, {dtype}"


def floor(case: Case, dtype: str) -> float:
    """Seconds in which memory could be read and written: each input once, each result and each changed input once."""
    inputs = inputs_of(case, dtype)
    read = tensors(inputs)
    step, before = make_step(case, case.fn, inputs), [x._version for x in read]
    written = tensors(step()) + [x for x, version in zip(read, before, strict=True) if x._version != version]
    return sum(x.nbytes for x in read + written) / bandwidth()


def run(selection: Selection | None = None) -> list[Row]:
    """All cases asked for, and what they come to."""
    selection = selection or Selection()
    rows: list[Row] = []
    for case in matching(CASES, selection.only, "kernel"):
        for dtype in case.dtypes:
            if dtype not in selection.dtypes:
                continue
            names = selection.among(available())
            found = measure(title(case, dtype), names, functools.partial(prepare, case, dtype), rounds=selection.rounds)
            if selection.floor:
                print_shares(floor(case, dtype), found)
            selection.keep(found)
            rows += found
    print_summary(rows)
    return rows
