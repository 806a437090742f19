"""Functions whose results are rounded to bfloat16 at once, in Triton: which are shorter then, and how near they are."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs.tracing import trace
from interpreter_scripts.run import interpreted

from framesmith_backends import CudaBackend
from framesmith_backends.render.triton.emit import APPROXIMATED


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_shorter_functions_are_near_at_all_numbers_of_bfloat16() -> None:
    assert interpreted("approximate").count("ok ") == len(APPROXIMATED)


def source_of(function: Any, dtype: torch.dtype) -> str:
    return CudaBackend().explain(trace(function, [torch.randn(8, 64).to(dtype)])).kernels[0].source


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("gelu", F.gelu), ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")), ("silu", F.silu),
        ("sigmoid", torch.sigmoid),
    ],
)  # fmt: skip
def test_functions_rounded_to_bfloat16_are_shorter(name: str, function: Any) -> None:
    assert f"fs.approximate_{name}(" in source_of(function, torch.bfloat16)
    for dtype in (torch.float16, torch.float32):
        assert "approximate" not in source_of(function, dtype)
    # Read as float32, too, before it is rounded.
    both = source_of(lambda x: (y := function(x.float())).bfloat16() * y, torch.bfloat16)
    assert "approximate" not in both and f"fs.{name}(" in both
