"""`verify=True`: each compiled graph's first run is checked against the graph run eagerly on copies of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from framesmith.failures import Failures
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


def verified(gm: fx.GraphModule, compiled: Callable[..., Sequence[Any]], failures: Failures) -> Callable[..., Any]:
    """`compiled`, checked on its first call. A difference is reported and the graph then runs eagerly for good."""
    trusted: Callable[..., Sequence[Any]] | None = None

    def run(*inputs: Any) -> Sequence[Any]:
        nonlocal trusted
        if trusted is not None:
            return trusted(*inputs)
        copies = copied(inputs)
        with torch.random.fork_rng():
            expected = gm.forward(*copies)
            rng_state = torch.get_rng_state()
        problem = first_difference([*expected, *copies], run_on_copies(compiled, inputs), rng_state)
        if problem is not None:
            failures.report("a graph that verify=True checked", VerificationError(problem))
        trusted = compiled if problem is None else gm.forward
        return trusted(*inputs)

    return run


def run_on_copies(compiled: Callable[..., Sequence[Any]], inputs: Sequence[Any]) -> tuple[list[Any], torch.Tensor]:
    """Outputs and mutated inputs of the compiled graph on copies, and the RNG state it left."""
    copies = copied(inputs)
    with torch.random.fork_rng():
        outputs = [*compiled(*copies), *copies]
        return outputs, torch.get_rng_state()


def first_difference(expected: list[Any], actual: tuple[list[Any], torch.Tensor], rng: torch.Tensor) -> str | None:
    """The first place where two runs of a graph differ."""
    outputs, rng_after = actual
    if len(expected) != len(outputs):
        return f"expected {len(expected)} results, got {len(outputs)}"
    for position, (wanted, got) in enumerate(zip(expected, outputs, strict=True)):
        problem = differs(wanted, got)
        if problem is not None:
            return f"result {position}: {problem}"
    return None if torch.equal(rng, rng_after) else "the random number generator was advanced differently"


def copied(inputs: Sequence[Any]) -> list[Any]:
    """Tensors with the same contents, strides, shared memory and requires_grad; anything else as it is."""
    made = iter(layouts.copies([value for value in inputs if isinstance(value, torch.Tensor)]))
    return [
        next(made).requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value for value in inputs
    ]
