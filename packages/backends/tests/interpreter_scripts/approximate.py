"""Functions at all values of bfloat16, beside float64."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from framesmith_backends.launch.cuda import triton_support as fs

#: Name -> the function in float64, how far off it may be as a power of two of the result.
FUNCTIONS = {
    "gelu": (lambda x: x * 0.5 * torch.erfc(-x / math.sqrt(2)), -13),
    "gelu_tanh": (lambda x: x * torch.sigmoid(2 * (x + x**3 * 0.044715) * math.sqrt(2 / math.pi)), -16),
    "silu": (lambda x: x * torch.sigmoid(x), -16),
    "sigmoid": (torch.sigmoid, -16),
}  # fmt: skip
#: Below this float32 has fewer digits.
LEAST = 2.0**-120


@triton.jit
def kernel(a, b, which: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * 256 + tl.arange(0, 256)
    x = tl.load(a + at)
    if which == 0:
        y = fs.approximate_gelu(x)
    elif which == 1:
        y = fs.approximate_gelu_tanh(x)
    elif which == 2:
        y = fs.approximate_silu(x)
    else:
        y = fs.approximate_sigmoid(x)
    tl.store(b + at, y)


def main() -> None:
    x = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    for which, (name, (function, digits)) in enumerate(FUNCTIONS.items()):
        found = torch.empty_like(x)
        kernel[(256,)](x, found, which)
        wanted = function(x.double())
        ordinary = (wanted.abs() > LEAST) & wanted.isfinite()
        off = ((found - wanted) / wanted).abs()[ordinary]
        assert off.max() < 2.0**digits, (name, off.max())
        near = x.abs() < 4.6
        assert ((found - wanted) / wanted).abs()[ordinary & near].max() < 2.0**-15.9, name
        small = (wanted.abs() <= LEAST) & wanted.isfinite()
        assert (found - wanted).abs()[small].max() < 2 * LEAST, name
        assert torch.equal(found.isnan(), wanted.isnan()) and torch.equal(found.isinf(), wanted.float().isinf()), name
        print("ok", name)


if __name__ == "__main__":
    main()
