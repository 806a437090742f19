"""Programs that read, round to and move float8 numbers, on all numbers of types that have few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
KINDS = (torch.float8_e4m3fn, torch.float8_e5m2)
SOURCES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.uint8, torch.bool)
TARGETS = (*SOURCES, *KINDS)


def every(kind: torch.dtype) -> Tensor:
    """All numbers of 8 or 16 bits."""
    if kind.itemsize == 1:
        return torch.arange(256, dtype=torch.uint8).view(kind)
    return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(kind)


def near_ties(kind: torch.dtype) -> Tensor:
    """In float32: what lies between neighbours, just above and just below that, and what is too large or none."""
    known = every(kind).float()
    known = known[known.isfinite()].sort().values
    middle = (known[1:] + known[:-1]) / 2
    above, below = (middle.nextafter(torch.tensor(way)) for way in (torch.inf, -torch.inf))
    odd = [448.1, 464, 464.1, 480, 61439, 61440, 61441, 65535, 65536, 1e30, 1e-30, 1e-45, 0.0, torch.inf, torch.nan]
    return torch.cat([known, middle, above, below, torch.tensor(odd), -torch.tensor(odd)])


def numbers(source: torch.dtype, kind: torch.dtype) -> Tensor:
    """Of the source's numbers all, or those that are hard to round to the other type."""
    if source == torch.float32:
        return near_ties(kind)
    if source in (torch.bfloat16, torch.float16):
        return every(source)[::37].contiguous()
    if source == torch.float64:
        return near_ties(kind).double() * (1 + 1e-9)
    if source == torch.int32:
        return torch.tensor([0, 1, -1, 17, 19, 240, 449, 465, 70_000, -70_000, 1 << 30, -(1 << 31)], dtype=source)
    return every(torch.uint8).to(source)


def to(kind: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda x: x.to(kind)


def per_row(kind: torch.dtype) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Rows scaled to the range of the type."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        most = torch.finfo(kind).max
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / most
        return (x / scale).clamp(-most, most).to(kind), scale

    return function


def moved(x: Tensor) -> tuple[Tensor, ...]:
    joined = torch.cat([x, x.flip(0)]).t().contiguous()
    chosen = torch.where(joined.float() > 0, joined, F.pad(x, (1, 2))[:1, :1])
    return joined, chosen, x[torch.tensor([2, 0, -1])], torch.full_like(x, 1.7), x.float() @ x.float().t()


def widened(x: Tensor) -> tuple[Tensor, ...]:
    """Arithmetic in other types, behind and before."""
    return (x.to(torch.bfloat16) * 2).sum(-1), x.float().exp().to(x.dtype), x.to(torch.float16).to(torch.float8_e5m2)


def programs() -> Iterator[tuple[str, Callable[..., Any], Tensor]]:
    """A name, what is computed and of what."""
    for kind in KINDS:
        name = str(kind).removeprefix("torch.")
        for source in SOURCES:
            yield f"{source} to {name}", to(kind), numbers(source, kind)
        for target in (one for one in TARGETS if one != kind):
            x = every(kind)
            yield f"{name} to {target}", to(target), x if target.is_floating_point else x[x.float().isfinite()][1:]
        rows = torch.randn(9, 70, generator=torch.Generator().manual_seed(0)) * 30
        yield f"rows to {name}", per_row(kind), rows
        yield f"{name} moved", moved, rows[:7, :11].to(kind)
        yield f"{name} widened", widened, rows[:5, :33].to(kind)


def differing(found: Tensor, wanted: Tensor) -> int:
    """Return the number of elements that differ; those of 8 bits are compared as bytes, but for NaN."""
    assert (found.dtype, found.shape, found.stride()) == (wanted.dtype, wanted.shape, wanted.stride())
    if wanted.dtype in KINDS:
        none = found.float().isnan() & wanted.float().isnan()
        return int(((found.view(torch.uint8) != wanted.view(torch.uint8)) & ~none).sum())
    near = torch.isclose(found, wanted, rtol=1e-2 if wanted.dtype == torch.bfloat16 else 1e-5, equal_nan=True)
    exact = found.eq(wanted) | (found.isnan() & wanted.isnan())
    return int((~(near if wanted.dim() == 2 or wanted.dtype == torch.bfloat16 else exact)).sum())
