"""How torch's settings have float32 computed on CUDA."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

import torch

from framesmith_backends.torch_adapter import unstable

What = Literal["matmul", "conv", "rnn"]


def float32_precision(what: What) -> Callable[[], object]:
    """What reads how this is computed: "tf32" or True if it may be rounded to TensorFloat-32.

    What is older than torch 2.9 (`allow_tf32`) raises where the settings of convolutions and recurrent layers differ,
    and where matmuls have been set by newer functions alone.
    """
    precision = unstable.get_fp32_precision_getter
    if precision is not None:
        return functools.partial(precision, "cuda", what)
    return lambda: (torch.backends.cuda.matmul if what == "matmul" else torch.backends.cudnn).allow_tf32


def rounds_float32(what: What) -> bool:
    """Whether this may be rounded to TensorFloat-32."""
    return float32_precision(what)() in ("tf32", True)
