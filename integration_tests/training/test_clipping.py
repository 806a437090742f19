"""Gradients clipped inside compiled functions, against eager mode: norms, values, many dtypes, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import utils
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype as grouped

import framesmith

Parameters = list[nn.Parameter]


def parameters(dtypes: tuple[torch.dtype, ...] = (torch.float32,) * 3) -> Parameters:
    """Parameters of these dtypes, the last of them without a gradient."""
    generator = torch.Generator().manual_seed(0)
    made = [nn.Parameter(torch.randn(at + 2, 3, generator=generator).to(dtype)) for at, dtype in enumerate(dtypes)]
    for parameter in made:
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
    return [*made, nn.Parameter(torch.ones(2))]


def by_norm(*args: Any, **kwargs: Any) -> Callable[[Parameters], Any]:
    return lambda ps: utils.clip_grad_norm_(ps, *args, **kwargs)


def in_two_calls(ps: Parameters) -> torch.Tensor:
    total = utils.get_total_norm([p.grad for p in ps if p.grad is not None])
    utils.clip_grads_with_norm_(ps, 0.3, total)
    return total * 2


def scaled_by_its_norm(ps: Parameters) -> list[torch.Tensor]:
    norm = utils.clip_grad_norm_(iter(ps), 0.3)
    return [norm / p.grad.norm() for p in ps if p.grad is not None]


def in_groups(ps: Parameters) -> list[Any]:
    found = grouped([ps, [p.grad for p in ps], [None] * len(ps), []], True)
    return [(str(dtype), str(device), positions, *lists) for (device, dtype), (lists, positions) in found.items()]


def changed_through_groups(ps: Parameters) -> dict[Any, Any]:
    groups = grouped([[p.grad for p in ps[:-1]]])
    for (grads,), _ in groups.values():
        torch._foreach_mul_(grads, 0.5)
    return {dtype: len(lists[0]) for (_, dtype), (lists, _) in groups.items()}


#: Each one graph.
WHOLE: dict[str, Callable[[Parameters], Any]] = {
    "by norm": by_norm(0.1),
    "by norm, not reached": by_norm(1e6),
    "by the largest": by_norm(0.1, norm_type=float("inf")),
    "by the sum": by_norm(0.1, 1),
    "by norm, many at once": by_norm(0.1, foreach=True),
    "by norm, one by one": by_norm(0.1, foreach=False),
    "by norm, of one tensor": lambda ps: utils.clip_grad_norm_(ps[0], 0.1),
    "by norm, of none": lambda ps: utils.clip_grad_norm_(ps[-1:], 0.1) + 1,
    "by norm, twice": lambda ps: (utils.clip_grad_norm_(ps, 1.0), utils.clip_grad_norm_(ps[:1], 0.1)),
    "by value": lambda ps: utils.clip_grad_value_(ps, 0.2),
    "by value, one by one": lambda ps: utils.clip_grad_value_(ps, 0.2, foreach=False),
    "in two calls": in_two_calls,
    "norm used": scaled_by_its_norm,
    "groups": in_groups,
    "groups changed": changed_through_groups,
}
BROKEN: dict[str, Callable[[Parameters], Any]] = {
    "error of infinite norms": by_norm(0.1, error_if_nonfinite=True),
    "lists of two lengths": lambda ps: grouped([ps, ps[:1]]),
    "no tensors": lambda ps: grouped([[]]),
}
DTYPES: dict[str, tuple[torch.dtype, ...]] = {
    "one": (torch.float32,) * 4,
    "several": (torch.float32, torch.float64, torch.float32, torch.bfloat16, torch.float64),
}


def clipped(fn: Callable[[Parameters], Any], dtypes: tuple[torch.dtype, ...], infinite: bool) -> list[Any]:
    """Results or errors, and gradients, of two calls."""
    ps = parameters(dtypes)
    if infinite:
        assert ps[0].grad is not None
        ps[0].grad[0] = float("inf")
    found: list[Any] = []
    for _ in range(2):
        try:
            found.append(fn(ps))
        except RuntimeError as error:
            found.append(str(error))
        found.append([None if p.grad is None else p.grad.clone() for p in ps])
    return found


def assert_like(found: Any, wanted: Any) -> None:
    if isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(found, wanted, equal_nan=True)
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_like(one, other)
    else:
        assert found == wanted


@pytest.mark.sampled(2)
@pytest.mark.parametrize("infinite", [False, True], ids=["finite", "infinite"])
@pytest.mark.parametrize("dtypes", DTYPES)
@pytest.mark.parametrize("name", [*WHOLE, *BROKEN])
def test_clipping_is_eagers(name: str, dtypes: str, infinite: bool) -> None:
    framesmith.reset()
    fn = WHOLE.get(name) or BROKEN[name]
    compiled = framesmith.compile(fn, backend="eager", strict=True)
    assert_like(clipped(compiled, DTYPES[dtypes], infinite), clipped(fn, DTYPES[dtypes], infinite))
    if name in WHOLE:
        counts = framesmith.stats()
        assert (counts["breaks"], counts["frames_failed"]) == (0, 0), counts


@pytest.mark.parametrize("name", ["by norm", "by the largest", "by value", "in two calls"])
def test_compiled_kernels_clip_as_eager_does(name: str) -> None:
    framesmith.reset()
    fn = WHOLE[name]
    found = clipped(framesmith.compile(fn, strict=True), DTYPES["one"], False)
    assert_like(found, clipped(fn, DTYPES["one"], False))
