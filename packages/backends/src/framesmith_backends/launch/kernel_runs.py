"""Runs of CUDA kernels as launchers take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from framesmith_backends.render.triton.kernel import TritonKernel
from framesmith_backends.schedule.steps import Run


@dataclass(frozen=True, slots=True)
class KernelRun:
    """A step of the plan, its kernels' Triton forms, and where each finds its arguments among the step's."""

    step: Run
    kernels: Sequence[TritonKernel]
    places: Sequence[tuple[int, ...]]
