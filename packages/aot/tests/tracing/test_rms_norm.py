"""`torch.rms_norm` on CUDA, decomposed: torch's strides there, and the CPU's numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from framesmith_aot.trace.replacements.operators import normed_by_rms
from framesmith_aot.trace.replacements.table import REPLACEMENTS


def described(x: torch.Tensor) -> tuple[Any, ...]:
    return x.dtype, x.shape, x.stride(), x.device.type


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="this torch knows nothing of CUDA")
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_laid_out_and_typed_as_torchs(dtype: torch.dtype, autocast: bool) -> None:
    with FakeTensorMode():
        x = torch.empty(2, 3, 4, 5, device="cuda", dtype=dtype)
        weight = torch.empty(5, device="cuda", dtype=dtype)
        torch.set_autocast_enabled("cuda", autocast)
        try:
            gaps = torch.empty_strided((2, 3, 2, 5), (60, 20, 10, 1), device="cuda", dtype=dtype)
            for given in (x, x.transpose(1, 2), x.to(memory_format=torch.channels_last), gaps):
                for arguments in (([5], weight), ([4, 5][-1:], None, 1e-3), ([*given.shape[2:]],)):
                    found = REPLACEMENTS[torch.nn.functional.rms_norm](given, *arguments)
                    assert described(found) == described(torch.rms_norm(given, *arguments))
        finally:
            torch.set_autocast_enabled("cuda", False)


def test_what_does_not_fit_is_torchs_error() -> None:
    with FakeTensorMode(), pytest.raises(RuntimeError, match="normalized_shape"):
        REPLACEMENTS[torch.rms_norm](torch.empty(2, 3, device="cuda"), [4])


@pytest.mark.parametrize("eps", [1e-3, 1e-5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_numbers_are_those_of_the_cpu(dtype: torch.dtype, eps: float) -> None:
    x, weight = torch.randn(4, 6, 8).to(dtype), torch.randn(6, 8).to(dtype)
    torch.testing.assert_close(normed_by_rms(x, 2, weight, eps), torch.rms_norm(x, [6, 8], weight, eps))
    torch.testing.assert_close(normed_by_rms(x, 1, None, eps), torch.rms_norm(x, [8], None, eps))
