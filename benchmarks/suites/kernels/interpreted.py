"""Every kernel of the registry and of torch's operator database in Triton's interpreter, its results beside eager's.

The interpreter computes on CPU tensors, with NumPy, whatever the kernels of the cuda backend would do on a device. It
has to be asked for before Triton is imported: `TRITON_INTERPRET=1 python -m benchmarks interpreted`.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch.utils._pytree import tree_map

import framesmith
from benchmarks.harness.agreement import check, in_float64, tensors
from benchmarks.harness.timing import Row
from benchmarks.kernel_cases import Case
from benchmarks.models.selection import Selection
from benchmarks.suites.kernels import kernels
from benchmarks.suites.kernels.gpu_kernels import (
    CUDA,
    Collector,
    kernel_cases,
    operator_cases,
    operator_samples,
    results_of,
)
from framesmith_aten.contract import BoxedFn, OnError, Role

#: Operators whose results nobody knows.
UNKNOWN = ("empty", "new_empty", "empty_like", "empty_strided", "empty_permuted", "new_empty_strided")
KERNELS = "kernels"


class Interpreter(Collector):
    """Runs what it collects."""

    def compile(
        self,
        gm: fx.GraphModule,
        inputs: Sequence[torch.Tensor],
        role: Role = "inference",
        options: Mapping[str, object] | None = None,
        on_error: OnError | None = None,
    ) -> BoxedFn:
        super().compile(gm, inputs, role)
        return CUDA.compile(gm, inputs, role)


def _are_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool(((one == other) | (one != one) & (other != other)).all())


def run_operator(op: Any, dtype: torch.dtype, backend: Any) -> None:
    """An AssertionError for the first sample whose results are not eager's; those left to chance are not compared."""
    for call, given, run in operator_samples(op, dtype):

        def eager(convert: Callable[[object], object], call: Any = call, given: Any = given) -> list[torch.Tensor]:
            torch.manual_seed(1)
            return tensors(results_of(call, [convert(x) for x in given]))

        try:
            expected = eager(lambda x: x)
            torch.manual_seed(2)
            with mock.patch("torch.manual_seed"):  # the database's own are set while a graph is made, not at a call
                others = tensors(results_of(call, given))
            certain = all(map(_are_same, expected, others))
        except NotImplementedError:  # in eager mode
            continue
        if certain:
            torch.manual_seed(1)
            check(tensors(run(backend)), expected, functools.partial(eager, in_float64), 10.0)


def run_kernel(case: Case, dtype: str, backend: Any) -> None:
    """The case as the suite of kernels checks it."""

    def eager(convert: Callable[[object], object]) -> list[torch.Tensor]:
        others = tree_map(convert, kernels.inputs_of(case, dtype))
        return tensors((kernels.make_step(case, case.fn, others)(), others))

    inputs = kernels.inputs_of(case, dtype)
    step = kernels.make_step(case, framesmith.compile(case.fn, backend=backend, strict=True), inputs)
    given = tensors((step(), inputs))
    if not case.random:
        check(given, eager(lambda x: x), lambda: eager(in_float64), case.scale)


def cases(selection: Selection) -> Iterator[tuple[str, Callable[[Any], None]]]:
    for name, op, dtype in operator_cases(selection):
        if op.name not in UNKNOWN:
            yield name, functools.partial(run_operator, op, dtype)
    for name, case, dtype in kernel_cases(selection):
        yield name, functools.partial(run_kernel, case, dtype)


def run(selection: Selection | None = None) -> list[Row]:
    """Every kernel and operator asked for; the kernels of a case count where it agrees with eager."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise SystemExit("set TRITON_INTERPRET=1: Triton reads it at its import")
    selection = selection or Selection()
    interpreter, rows, agreed = Interpreter(), [], 0
    for name, check_case in cases(selection):
        framesmith.reset()
        start, before = time.perf_counter(), len(interpreter.made)
        interpreter.case, reason = name, ""
        try:
            check_case(interpreter)
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            print(f"{name}: {reason}", flush=True)
        fresh = len(interpreter.made) - before
        agreed += 0 if reason else fresh
        row = Row(name, "interpreted", time.perf_counter() - start, {}, 1, reason, {KERNELS: fresh})
        rows.append(row)
        selection.keep([row])
    failed = sum(bool(row.reason) for row in rows)
    print(f"{agreed} of {len(interpreter.made)} kernels agree with eager; {failed} of {len(rows)} programs do not")
    return rows
