"""The names of torch that may move between releases: see Note [Needs] in `framesmith_guards.needs`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Final, Literal

import torch

from framesmith_aten.torch_adapter import unstable as of_aten
from framesmith_guards.needs import Needs, Operators, need
from framesmith_guards.torch_adapter import unstable as of_guards

_MAKERS: Final = "results are made by operators"
_CAPTURE: Final = "launches are not captured as CUDA graphs"
_CUDA: Final = torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]
SWITCHES: Final = (
    "_get_deterministic_algorithms",
    "_get_deterministic_algorithms_warn_only",
    "_get_deterministic_fill_uninitialized_memory",
    "_get_cudnn_enabled",
    "_get_cudnn_deterministic",
    "_get_cublas_allow_fp16_reduced_precision_reduction",
    "_get_cublas_allow_bf16_reduced_precision_reduction",
    "_get_cublas_allow_fp16_accumulation",
)


def over_its_memory(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0) -> torch.Tensor:
    """A new tensor over the memory of another, which autograd does not know as a view of it."""
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return made.set_(tensor.untyped_storage(), tensor.storage_offset() + offset, tuple(size), tuple(stride))


unstable: Final = Needs(
    "backends",
    (
        need(
            "torch._C._AutoDispatchBelowADInplaceOrView",
            "operators that graphs call are called with autograd",
            instead=torch.no_grad,
        ),
        need("torch._foreach_copy_", _CAPTURE),
        # Functions that make tensors without an operator; a part of torch._C, not of torch._dynamo.
        need("torch._C._dynamo.guards._empty_strided_cpu", _MAKERS, instead=torch.empty_strided),
        need(
            "torch._C._dynamo.guards._empty_strided_cuda",
            _MAKERS,
            built=_CUDA,
            instead=functools.partial(torch.empty_strided, device="cuda"),
        ),
        need("torch._C._dynamo.guards._reinterpret_tensor", _MAKERS, instead=over_its_memory),
        # CUDA graphs
        need("torch._C._cuda_endAllocateToPool", _CAPTURE, built=_CUDA),
        need("torch._C._cuda_releasePool", _CAPTURE, built=_CUDA),
        need("torch._C._cuda_getCurrentRawStream", _CAPTURE, built=_CUDA),
        need("torch._C._cuda_clearCublasWorkspaces", _CAPTURE, built=_CUDA),
        # How ATen computes on CUDA: a switch that a release does not have changes nothing.
        *(
            need(f"torch._C.{name}", "a captured graph is replayed where it has been switched", instead=None)
            for name in SWITCHES
        ),
    ),
    of_aten,
    of_guards,
)

#: oneDNN's operators.
mkldnn: Final = Operators("mkldnn")

Computation = Literal["matmul", "conv", "rnn"]


def float32_precision(what: Computation) -> Callable[[], object]:
    """Return the function that reads how this is computed on CUDA: "tf32" or True for TensorFloat-32.

    `allow_tf32`, of before torch 2.9, raises where the settings of convolutions and recurrent layers differ, and where
    matmuls have been set by newer functions alone.
    """
    precision = unstable.get_fp32_precision_getter
    if precision is not None:
        return functools.partial(precision, "cuda", what)
    return lambda: (torch.backends.cuda.matmul if what == "matmul" else torch.backends.cudnn).allow_tf32


def rounds_float32(what: Computation) -> bool:
    """Whether operands may be rounded to TensorFloat-32."""
    return float32_precision(what)() in ("tf32", True)
