"""Whether results are eager's; where eager's own are far from those in float64, either will do, and what is as near."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.utils._pytree import tree_leaves

#: Relative and absolute tolerances; results of other types are equal.
TOLERANCES = {
    torch.float32: (1e-4, 1e-5),
    torch.bfloat16: (3e-2, 3e-2),
    torch.float16: (4e-3, 4e-3),
    torch.float64: (1e-9, 1e-9),
    torch.complex64: (1e-4, 1e-5),
    torch.float8_e4m3fn: (0.13, 2e-3),
    torch.float8_e5m2: (0.26, 2e-5),
}


def tensors(tree: object) -> list[torch.Tensor]:
    """Those in a tree of tuples and lists."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def in_float64(x: object) -> object:
    """Floating tensors in float64, of other leaves the same."""
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def differing(one: torch.Tensor, other: torch.Tensor, scale: float) -> torch.Tensor:
    """Return where two tensors of a type differ by more than its tolerances, the absolute one times `scale`."""
    relative, absolute = TOLERANCES.get(one.dtype, (0.0, 0.0))
    if one.is_floating_point() and one.itemsize == 1:  # with which nothing is computed
        one, other = one.float(), other.float()
    return ~torch.isclose(one, other, rtol=relative, atol=absolute * scale, equal_nan=True)


def check_norms(given: list[torch.Tensor], expected: list[torch.Tensor], near: float | None, by_chance: float) -> None:
    """An AssertionError where all results together are not as near to those expected, by their norms.

    Without `near`, results are random: their norms alone are compared, and may differ by `by_chance`.
    """
    mine, theirs = ([(one.shape, one.dtype) for one in results] for results in (given, expected))
    if mine != theirs:
        raise AssertionError(f"{mine}, eager {theirs}"[:300])
    size = joint_norm(expected)
    if near is None:
        off, allowed = abs(joint_norm(given) - size), by_chance * size
    else:
        off, allowed = distance(given, expected), near * size
    if not off <= allowed + 1e-6:
        raise AssertionError(f"results are {off:.3g} off where eager's norm is {size:.3g}, allowed {allowed:.3g}")


def distance(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """That between all numbers of all results."""
    return joint_norm([_wide(mine) - _wide(theirs) for mine, theirs in zip(one, other, strict=True)])


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def joint_norm(results: list[torch.Tensor]) -> float:
    """That of all numbers of all results."""
    norms = [torch.linalg.vector_norm(_wide(one)) for one in results]
    return float(torch.stack(norms).norm()) if norms else 0.0


def check(
    given: list[torch.Tensor], expected: list[torch.Tensor], precise: Callable[[], list[torch.Tensor]], scale: float
) -> None:
    """An AssertionError with the first result which is neither the expected one nor `precise()`'s.

    Where elements of the expected one are not `precise()`'s either, such will do if a result is off by up to twice as
    much, all in all.
    """
    for position, (one, other) in enumerate(zip(given, expected, strict=True)):
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            raise AssertionError(f"{one.dtype} {tuple(one.shape)}, eager {other.dtype} {tuple(other.shape)}")
        wrong = differing(one, other, scale)
        if not wrong.any():
            continue
        exact = precise()[position].to(one.dtype)
        wrong &= differing(one, exact, scale)
        if (off := differing(other, exact, scale)).any():
            mine, theirs = distance([one], [exact]), distance([other], [exact])
            wrong &= ~off | torch.tensor(not mine <= 2 * theirs < math.inf)
        if wrong.any():
            place = tuple(wrong.nonzero()[0].tolist())
            values = f"{one[place]:.7g}, eager {other[place]:.7g}, in float64 {exact[place]:.7g}"
            raise AssertionError(f"{int(wrong.sum())} of {wrong.numel()} in result {position}, at {place} {values}")
