"""Kernels run by Triton's interpreter, on tensors of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from framesmith_backends.ir.dtypes import DTYPES, FLOAT8
from framesmith_backends.launch.cuda.kernel_runs import KernelRun, launches, one_by_one
from framesmith_backends.launch.cuda.triton_jit import load
from framesmith_backends.render.triton.kernel import TritonKernel

#: Tensors of these are bytes to kernels.
KEPT_AS_BYTES = frozenset(DTYPES[name].torch for name in FLOAT8)


def entry(run: KernelRun) -> Callable[..., None]:
    """A function of the launch list's tensors and numbers that interprets the kernels in order."""
    return one_by_one(run, launcher)


def launcher(kernel: TritonKernel) -> Callable[[Sequence[Any]], None]:
    """A function that interprets the kernel on tensors, which come first, and numbers."""
    chosen, pointers = launches(kernel), len(kernel.pointers)

    def launch(values: Sequence[Any]) -> None:
        values = [v.view(torch.uint8) if getattr(v, "dtype", None) in KEPT_AS_BYTES else v for v in values]
        for form, first, count in chosen(values[pointers:]):
            rest = (first,) if form.has_first else ()
            load(form)[(count,)](*values, *rest, **form.options)

    return launch
