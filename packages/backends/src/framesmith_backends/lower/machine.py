"""What rules ask of the machine that kernels are for, wherever the tensors are that a graph was traced with.

Kernels for GPUs are also made of graphs over CPU tensors: to be read, compiled without a device, or interpreted.
"""

from __future__ import annotations

from dataclasses import dataclass

from framesmith_backends.ir.splitting import ON_GPU, Splitting


@dataclass(frozen=True, slots=True)
class Machine:
    """A kind of machine, as far as its kernels differ by what operators are lowered to.

    `on_gpu`: ATen's kernels that results follow are those of CUDA, and core operations are those of GPUs.
    `in_order`: kernels may take points one after another; others add up as threads come.
    `scans`: kernels may scan. `splitting`: into how many parts statistics are cut by their rules, where they are.
    """

    on_gpu: bool
    in_order: bool
    scans: bool
    splitting: Splitting | None


CPU = Machine(on_gpu=False, in_order=True, scans=False, splitting=None)
GPU = Machine(on_gpu=True, in_order=False, scans=True, splitting=ON_GPU)
