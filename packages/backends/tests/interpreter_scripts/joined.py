"""Rows in small blocks, their passes joined, with numbers of all kinds.

Each function is compared with itself in double precision: it is no farther away than eager mode is, four times at most.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from graphs.tracing import trace
from interpreter_scripts.attempts import Attempt, failures_of, some
from torch import Tensor

from framesmith_backends import CudaBackend
from framesmith_backends.render.triton import tile_rules

Results = tuple[Tensor, ...]


def about_the_mean(x: Tensor) -> Results:
    """Sums of which all are results, as are those of distances."""
    distances = x - x.sum(-1, keepdim=True) / x.shape[-1]
    return x.sum(-1), (distances * distances).sum(-1), distances.sum(-1)


def mean_distance(x: Tensor) -> Results:
    """Mean absolute distance: the sums about another number do not give it."""
    distances = x - x.sum(-1, keepdim=True) / x.shape[-1]
    return distances.abs().sum(-1), distances.sum(-1)


def top_and_total(x: Tensor) -> Results:
    top = x.amax(-1, keepdim=True)
    return top, (x - top).exp().sum(-1)


FUNCTIONS: dict[str, Callable[[Tensor], Results]] = {
    "softmax": lambda x: (F.softmax(x, -1),),
    "softmax of columns": lambda x: (F.softmax(x, 0),),
    "two of them": lambda x: (F.softmax(x, -1), F.softmax(x * 2, -1)),
    "logsumexp": lambda x: (torch.logsumexp(x, -1),),
    "top and total": top_and_total,
    "layer norm": lambda x: (F.layer_norm(x, x.shape[-1:]),),
    "group norm": lambda x: (F.group_norm(x.view(1, *x.shape), 1),),
    "moments of columns": lambda x: torch.var_mean(x, 0),
    "about the mean": about_the_mean,
    "mean distance": mean_distance,
    "variance": lambda x: (x.var(-1),),
}
#: Expected results where eager mode differs on the CPU: the mean of infinite numbers is NaN.
SAID: dict[str, Callable[[Tensor], Results]] = {"moments of columns": lambda x: (x.var(0), x.mean(0))}
#: Functions of exponentials: their results are not finite at the same indices as in eager mode.
EXPONENTIALS = ("softmax", "softmax of columns", "two of them", "logsumexp", "top and total")
SHAPES = ((3, 70), (40, 5))


def numbers(shape: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
    """Doubles that are also floats."""
    torch.manual_seed(0)
    x = torch.randn(shape).double()
    yield "normal", x
    yield "far from 0", (x * 0.01 + 100).float().double()
    steps = x.clone()
    steps[:, :3], steps[:2] = -1000, 500
    yield "steps", steps
    yield (
        "one part of equal ones",
        torch.where(torch.arange(shape[-1]) < -(-shape[-1] // 16), torch.tensor(3.3), 0.0).expand(shape).double(),
    )
    for name, value, index in (("inf", math.inf, 2), ("inf at the end", -math.inf, -2), ("nan", math.nan, 2)):
        changed = x.clone()
        changed[1, index] = value
        yield name, changed
    yield "masked", torch.where(x < 0.3, -math.inf, x)
    masked = x.clone()
    masked[1], masked[:, 1] = -math.inf, -math.inf
    yield "all masked", masked
    yield "large", (x * 1e15).float().double()


def distance(found: Tensor, wanted: Tensor) -> float:
    """Return the largest distance of finite numbers; infinite where others are at other indices."""
    one, other = found.double(), wanted.double()
    finite = other.isfinite()
    if not torch.equal(one.isfinite(), finite) or not torch.equal(one.isnan(), other.isnan()):
        return math.inf
    return float((one - other)[finite].abs().max()) if finite.any() else 0.0


def check(name: str, dtype: torch.dtype, x: Tensor) -> None:
    function = FUNCTIONS[name]
    inputs = [x.to(dtype)]
    eager = SAID.get(name, function)(*inputs)
    wanted = function(inputs[0].double())
    found = CudaBackend().compile(trace(function, inputs), inputs)(list(inputs))
    for ours, theirs, exact in zip(found, eager, wanted, strict=True):
        assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())
        if not bool(x.isfinite().all()) and name not in EXPONENTIALS:
            assert torch.equal(ours.isfinite(), theirs.isfinite())
            assert torch.equal(ours.isnan(), theirs.isnan())
            continue
        largest = max(float(exact[exact.isfinite()].abs().max()) if exact.isfinite().any() else 0.0, 1e-3)
        if "mean" in name:
            largest = max(largest, float(x.abs().sum(-1).max()))
        rounding = torch.finfo(dtype).eps * largest
        assert distance(ours, exact) <= 4 * distance(theirs, exact) + 8 * rounding


def attempts() -> Iterator[Attempt]:
    for name, shape in itertools.product(FUNCTIONS, SHAPES):
        for kind, x in numbers(shape):
            for dtype in (torch.float32, torch.bfloat16) if kind in ("normal", "masked") else (torch.float32,):
                yield f"{name}, {shape}, {kind}, {dtype}", partial(check, name, dtype, x)


def main() -> int:
    """The number of failures."""
    tile_rules.WHOLE_ROW, tile_rules.ROW_BLOCK, tile_rules.LARGEST_BLOCK, tile_rules.LANE_BLOCK = 16, 16, 16, 64
    tile_rules.LONGER_ROWS.clear()
    return failures_of(some(attempts()))


if __name__ == "__main__":
    sys.exit(main())
