"""`verify=N`: each compiled graph's first N runs are checked against the graph run eagerly on copies of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import GradientEdge, get_gradient_edge

import framesmith_autograd_compiler
from framesmith.reports.failures import Failures
from framesmith_aten import layouts

#: Relative and absolute tolerance by dtype; float32's follow torch.testing.assert_close with room for fused kernels.
TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1e-4, 1e-4),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (3e-2, 3e-2),
}


class VerificationError(AssertionError):
    """A compiled graph's outputs differ from eager's."""


def differs(expected: object, actual: object) -> str | None:
    """Why two outputs are not the same result, or None."""
    if not isinstance(expected, torch.Tensor) or not isinstance(actual, torch.Tensor):
        return None if expected == actual else f"expected {expected!r}, got {actual!r}"
    for what in ("shape", "dtype", "device"):
        if getattr(expected, what) != getattr(actual, what):
            return f"{what}: expected {getattr(expected, what)}, got {getattr(actual, what)}"
    rtol, atol = TOLERANCES.get(expected.dtype, (0.0, 0.0))
    try:
        torch.testing.assert_close(actual.detach(), expected.detach(), rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        return str(error)
    return None


def verified(
    gm: fx.GraphModule, compiled: Callable[..., Sequence[Any]], failures: Failures, calls: int
) -> Callable[..., Any]:
    """`compiled`, its first `calls` calls checked. A difference is reported; the graph then runs eagerly for good."""
    trusted = compiled
    left = calls

    def run(*inputs: Any) -> Sequence[Any]:
        nonlocal trusted, left
        if left > 0:
            left -= 1
            problem = first_difference(observe(gm.forward, inputs), observe(compiled, inputs))
            if problem is not None:
                trusted, left = gm.forward, 0
                failures.report("a graph that verify= checked", VerificationError(problem))
        return trusted(*inputs)

    return run


@dataclass(frozen=True)
class Observed:
    """One run of a graph: results and then inputs after the run; gradients; the generator's state."""

    results: list[Any]
    gradients: list[torch.Tensor | None]
    rng_state: torch.Tensor


def observe(run: Callable[..., Sequence[Any]], inputs: Sequence[Any]) -> Observed:
    """A run on copies of the inputs, and, where its results have gradients, a pass back from all of them."""
    copies = copied(inputs)
    edges = [get_gradient_edge(copy) for copy in copies if isinstance(copy, torch.Tensor) and copy.requires_grad]
    with torch.random.fork_rng():
        outputs = run(*copies)
        state = torch.get_rng_state()
        return Observed([*outputs, *copies], _gradients(outputs, edges), state)


def _gradients(outputs: Sequence[Any], edges: Sequence[GradientEdge]) -> list[torch.Tensor | None]:
    roots = [out for out in outputs if isinstance(out, torch.Tensor) and out.grad_fn is not None]
    if not roots or not edges:
        return []
    numbers = torch.Generator().manual_seed(0)
    drawn = [torch.randn(root.shape, generator=numbers, device=numbers.device) for root in roots]
    cotangents = [one.to(root.device, root.dtype) for one, root in zip(drawn, roots, strict=True)]
    try:
        with framesmith_autograd_compiler.disabled():
            return list(torch.autograd.grad(roots, edges, cotangents, allow_unused=True))
    except RuntimeError:  # a backward pass that eager refuses; whether the compiled one does is seen in their number
        return []


def first_difference(expected: Observed, actual: Observed) -> str | None:
    """Return the first difference of two runs of a graph, or None."""
    for what, wanted, got in (
        ("result", expected.results, actual.results),
        ("gradient", expected.gradients, actual.gradients),
    ):
        if len(wanted) != len(got):
            return f"expected {len(wanted)} {what}s, got {len(got)}"
        for position, pair in enumerate(zip(wanted, got, strict=True)):
            problem = differs(*pair)
            if problem is not None:
                return f"{what} {position}: {problem}"
    same = torch.equal(expected.rng_state, actual.rng_state)
    return None if same else "the random number generator was advanced differently"


def copied(inputs: Sequence[Any]) -> list[Any]:
    """Tensors with the same contents, strides, shared memory, requires_grad and a history if they have one."""
    made = iter(layouts.copies([value for value in inputs if isinstance(value, torch.Tensor)]))
    return [_like(value, next(made)) if isinstance(value, torch.Tensor) else value for value in inputs]


def _like(value: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
    if value.is_leaf or not value.requires_grad:
        return copy.requires_grad_(value.requires_grad)
    with torch.inference_mode(False), torch.enable_grad():
        return _with_history(torch.empty(0, requires_grad=True, device=copy.device), copy)


class _WithHistory(torch.autograd.Function):
    """Gives a tensor a history, so that it may be changed in place."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(value)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, grads[0]


_with_history: Callable[..., torch.Tensor] = _WithHistory.apply
