"""The machines that kernels are compiled for: what lowering, scheduling and rendering weigh by them."""

from __future__ import annotations

import functools
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SplitPolicy:
    """When a reduction with few results is split in two, so that all threads have work.

    Reductions of fewer elements than `many` are not split.

    A unit of work is one result, or `columns` of them where these are contiguous. Fewer units than `few` leave threads
    idle; `wanted` do not, in up to `most_parts` for a loop. Units that read fewer bytes than `least` take less time
    than a launch, and are not split; a part has at least `fewest` elements. Where it is `balanced`, combining the parts
    of a result takes no longer than a part: no more parts than the root of half its elements are wanted, and there are
    no more than `SLACK` times as many.
    """

    many: int
    few: int
    wanted: int
    most_parts: int
    least: int
    fewest: int
    columns: int
    balanced: bool


@dataclass(frozen=True, slots=True)
class RowColumnPolicy:
    """The split of rows that are reduced along with sums down their columns: one program takes the rows of a part.

    There are `parts` of them, or more where rows have no such divisor or a part would have more than `most_rows`, and
    fewer where these would have fewer than `least_rows`. Fewer than `least` parts leave processors idle.

    With `in_registers`, threads hold the row and the sums in registers and prefetch the next row. Otherwise both lie in
    the cache.
    """

    parts: int
    least: int
    least_rows: int
    most_rows: int | None
    in_registers: bool


@dataclass(frozen=True, slots=True)
class InlineBudget:
    """The most that each of up to `users` readers computes again: of this cost, with so many loads."""

    cost: int
    loads: int
    users: int


@dataclass(frozen=True, slots=True)
class Processor:
    """A CPU: LLVM's `name` and `features`, the vector register's size in `bytes`, and `converts_float16`: whether
    it has instructions for that."""

    name: str
    features: str
    bytes: int
    converts_float16: bool

    @property
    def float_lanes(self) -> int:
        return self.bytes // 4

    @property
    def vectors(self) -> str:
        return vectors_of(self.bytes)


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of machine, wherever the tensors are that a graph was traced with.

    Lowering. `on_gpu`: results follow ATen's CUDA kernels, and core operations are those of GPUs. `in_order`: a kernel
    visits points one after another; otherwise threads add up in any order. `scans_rows`: kernels scan any dimension;
    otherwise columns alone, float32 in float64. `native_ops`: graphs may call this package's own operators, which LLVM
    compiles, in place of ATen's. `statistics`: how the rules of means and variances split them; None where the
    scheduler does.

    Scheduling. `split`: reductions that are split; `inline`: what is recomputed rather than stored; `row_column`: rows
    and columns of the same points reduced in one kernel, or None. `scratch`: kernels keep a row in scratch memory
    rather than recompute it. `row_layouts`: values that only kernels read are laid out in rows where rows are reduced.
    `copy_kernels`: copies onto inputs are kernels; otherwise one call for each dtype. `counts_together`: counters of
    steps share a kernel.
    `index_splitting`: parts of a concatenation are kernels of their own. `horizontal`: equal kernels are one launch.
    """

    on_gpu: bool
    in_order: bool
    scans_rows: bool
    native_ops: bool
    statistics: SplitPolicy | None
    split: SplitPolicy
    inline: InlineBudget
    row_column: RowColumnPolicy | None
    scratch: bool
    row_layouts: bool
    copy_kernels: bool
    counts_together: bool
    index_splitting: bool
    horizontal: bool


#: Processors and compute capability of the GPU that rules are made for, an H100 or H200.
GPU_PROCESSORS, GPU_CAPABILITY = 132, 90
#: Columns that a program of a GPU takes at least: a line of the cache.
LEAST_COLUMNS = 32
#: Bytes that a GPU's program reads at once, while twice as much is on its way: with reductions 48 KB, so that a
#: processor has four programs.
BYTES_IN_TURN = 16 << 10
#: Balanced splits have up to so many times as many parts as wanted: sizes have few divisors.
SLACK = 4

#: Vectors along other dimensions than rows are as fast on a CPU. A part has no more rows than a sum has steps before it
#: is added to a total.
CPU = Target(
    on_gpu=False,
    in_order=True,
    scans_rows=False,
    native_ops=True,
    statistics=None,
    split=SplitPolicy(1 << 15, few=8, wanted=32, most_parts=512, least=1, fewest=1, columns=64, balanced=False),
    inline=InlineBudget(cost=4, loads=2, users=4),
    row_column=RowColumnPolicy(parts=64, least=8, least_rows=8, most_rows=256, in_registers=False),
    scratch=True,
    row_layouts=False,
    copy_kernels=True,
    counts_together=False,
    index_splitting=True,
    horizontal=False,
)
#: A program reads some 10 bytes a nanosecond (H200), and a launch takes 2 us: splitting pays above 3 << 14 bytes.
_SPLIT_ON_GPU = SplitPolicy(
    1 << 15,
    GPU_PROCESSORS,
    4 * GPU_PROCESSORS,
    2048,
    least=3 << 14,
    fewest=1 << 10,
    columns=LEAST_COLUMNS,
    balanced=True,
)
#: Computing takes less time on a GPU than a launch, and than storing and reading back. A copy is a launch in any case,
#: and a kernel for it would be one more to compile.
GPU = Target(
    on_gpu=True,
    in_order=False,
    scans_rows=True,
    native_ops=False,
    statistics=_SPLIT_ON_GPU,
    split=_SPLIT_ON_GPU,
    inline=InlineBudget(cost=32, loads=2, users=4),
    row_column=RowColumnPolicy(parts=256, least=128, least_rows=8, most_rows=None, in_registers=True),
    scratch=False,
    row_layouts=True,
    copy_kernels=False,
    counts_together=True,
    index_splitting=False,
    horizontal=True,
)

#: Bytes of shared memory that a launch may use without opting in.
FREELY_SHARED = 48 << 10
#: Bytes of shared memory that a launch may opt in to, by compute capability (90: sm_90).
_MOST_SHARED = {
    80: 163 << 10, 86: 99 << 10, 87: 163 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 103: 227 << 10,
    110: 227 << 10, 120: 99 << 10, 121: 99 << 10,
}  # fmt: skip
_LEAST_SHARED = 64 << 10
#: Bytes of a launch's parameters, of which each takes eight.
PARAMETER_BYTES = 4096
#: Triton adds two addresses of scratch memory to a kernel's parameters; these kernels use none.
SCRATCH_PARAMETERS = 2
#: The number of parameters of its own that a kernel may have.
MOST_PARAMETERS = PARAMETER_BYTES // 8 - SCRATCH_PARAMETERS


def most_shared(capability: int) -> int:
    """Return the bytes of shared memory that a launch may have on GPUs of that compute capability."""
    return _MOST_SHARED.get(capability, _LEAST_SHARED)


def vectors_of(register_bytes: int) -> str:
    """Return the vector instructions that come with registers of that size: "avx512", "avx2", or "".

    Registers of 16 bytes are SSE's and NEON's, for which LLVM alone chooses instructions.
    """
    return {64: "avx512", 32: "avx2"}.get(register_bytes, "")


@functools.cache
def host() -> Processor:
    """Return the processor this process runs on."""
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    if features.get("avx512f") and features.get("avx512bw") and features.get("avx512vl"):
        width = 64
    elif features.get("avx2"):
        width = 32
    else:
        width = 16
    converts_float16 = bool(features.get("f16c") or features.get("fullfp16") or features.get("fp16"))
    return Processor(binding.get_host_cpu_name(), features.flatten(), width, converts_float16)
