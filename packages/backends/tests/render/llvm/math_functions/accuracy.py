"""The yardstick of the accuracy tests: errors in units of the last place."""

from __future__ import annotations

import torch


def errors(found: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """The error in units of the last place of the float32 nearest the exact value; infinite if a NaN is wrong."""
    limit = 3.4028235677973366e38
    exponent = torch.frexp(exact.float().abs().clamp(min=2.0**-126, max=3.4e38))[1]
    unit = torch.ldexp(torch.ones_like(exact), exponent - 24).clamp(min=2.0**-149)
    error = (found.double() - exact).abs() / unit
    overflowed = (exact.abs() >= limit) & (found.abs() > 3.4e38) & (found.sign() == exact.sign())
    error = torch.where(overflowed | (found == exact) | exact.isnan(), torch.zeros_like(error), error)
    return torch.where(found.isnan() != exact.isnan(), torch.full_like(error, float("inf")), error)
