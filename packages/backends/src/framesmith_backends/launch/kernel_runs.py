"""Runs of CUDA kernels as launchers take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from framesmith_backends.ir.fused_attention import FusedAttention
from framesmith_backends.ir.fused_product import FusedProduct
from framesmith_backends.ir.product import OnGpu
from framesmith_backends.render.triton.attention import render_attention
from framesmith_backends.render.triton.kernel import TritonKernel, render_triton
from framesmith_backends.render.triton.product import render_product
from framesmith_backends.render.triton.sets import Launch
from framesmith_backends.schedule.steps import Run


@dataclass(frozen=True, slots=True)
class KernelRun:
    """A step of the plan, its kernels' Triton forms, and where each finds its arguments among the step's."""

    step: Run
    kernels: Sequence[TritonKernel]
    places: Sequence[tuple[int, ...]]


def computing(run: Run) -> list[OnGpu]:
    """What of the run computes anything, in order."""
    return [item for item in run.items if isinstance(item, OnGpu) and item.points != 0]


def rendered(item: OnGpu) -> TritonKernel:
    """The Triton form of a kernel, of a product with its epilogue, or of attention."""
    name = f"triton_{item.name}"
    if isinstance(item, FusedAttention):
        return render_attention(item, name)
    return render_product(item, name) if isinstance(item, FusedProduct) else render_triton(item, name)


def alone(item: OnGpu, form: TritonKernel) -> Launch:
    """Its launch by itself."""
    return Launch(form, tuple(param.name for param in item.params))


def kernel_run(run: Run, launches: Sequence[Launch]) -> KernelRun:
    """The run with what it launches, and where that finds its arguments."""
    at = {name: k for k, name in enumerate((*run.buffers, *run.numbers))}
    places = [tuple(at[n] for n in (*launch.buffers, *launch.kernel.numbers)) for launch in launches]
    return KernelRun(run, [launch.kernel for launch in launches], places)
