"""Symbolic scalars, through the default backend: those that a tensor's type cannot hold are refused, as in eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import framesmith
import framesmith_frames as frames

X = torch.arange(-2.0, 3.0)
INTEGERS = (5, 7, 300, -200, 2**31 - 1, 0, 1, 70_000, -1)
FLOATS = (0.5, 2.5, 1e5, -1e30, 1e300, math.inf, 0.0, -0.5)

PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "full of bytes": lambda n: torch.full((3,), n, dtype=torch.int8),
    "full of unsigned bytes": lambda n: torch.full((3,), n, dtype=torch.uint8),
    "full of halves": lambda n: torch.full((3,), n, dtype=torch.float16),
    "full": lambda n: torch.full((3,), n),
    "fill": lambda n: X.clone().fill_(n),
    "fill of integers": lambda n: X.int().fill_(n),
    "masked_fill": lambda n: X.masked_fill(X > 0, n),
    "masked_fill of bytes": lambda n: X.to(torch.int8).masked_fill(X > 0, n),
    "where": lambda n: torch.where(X > 0, X.half(), n),
    "clamp": lambda n: X.to(torch.int8).clamp(max=n) if isinstance(n, int) else X.clamp(max=n),
    "alpha": lambda n: torch.add(X.half(), X.half(), alpha=n),
    "item": lambda n: X.half().index_fill(0, torch.tensor([1]), n),
    "pad": lambda n: F.pad(X.half(), (1, 1), value=n),
    "celu": lambda n: F.celu(X, n),
    "softshrink": lambda n: F.softshrink(X, n),
    "wrapped": lambda n: (X.to(torch.int8) * n, X.half() + n, X > n),
    "a multiplication": lambda n: X.double() + n * n * n * n if isinstance(n, int) else X * (n * 1e30),
    "a hash": lambda n: X.long() + (n * 747796405 + 12345) * 277803737 % 1000003 if isinstance(n, int) else X,
    "a large quotient": lambda n: X.long() + n**4 // 9**17 if isinstance(n, int) else X,
    "a square of halves": lambda n: torch.full((3,), n * n, dtype=torch.float16),
    "a computed number": lambda n: torch.full((3,), math.exp(min(n, 700)), dtype=torch.int32),
}


def outcome(function: Callable[[Any], Any], n: Any) -> tuple[str, Any]:
    try:
        return "given", function(n)
    except (RuntimeError, OverflowError) as error:
        return type(error).__name__, str(error)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("kind", ["integers", "floats"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_eager_mode(name: str, kind: str, dynamic: bool | None) -> None:
    program = PROGRAMS[name]
    compiled = framesmith.compile(program, dynamic=dynamic, recompile_limit=20)
    for n in INTEGERS if kind == "integers" else FLOATS:
        (how, found), (expected_how, expected) = outcome(compiled, n), outcome(program, n)
        assert how == expected_how, n
        if how == "given":
            torch.testing.assert_close(found, expected, equal_nan=True)
        else:
            assert found == expected, n


def test_numbers_that_fit_are_compiled_for_once() -> None:
    def program(x: torch.Tensor, n: int, f: float) -> torch.Tensor:
        return (x.clamp(max=f) * n).masked_fill(x > n, f) / x.numel() + n * n

    framesmith.reset()
    compiled = framesmith.compile(program, dynamic=True)
    for n, f in ((5, 0.5), (-7, 1e30), (2**30, -2.5)):
        torch.testing.assert_close(compiled(X, n, f), program(X, n, f))
    assert len(frames.entries(program.__code__)) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("power", [lambda x, n: x**n, lambda x, n: n**x, lambda x, n: (x + n) ** (n + 1)])
@pytest.mark.parametrize("numbers", [(2, 3, 5, 0, 1), (0.5, 1.5, 3.0, 0.0)])
def test_powers_with_gradients(power: Callable[..., torch.Tensor], numbers: tuple[Any, ...]) -> None:
    framesmith.reset()
    compiled = framesmith.compile(power, dynamic=True, strict=True)
    for n in numbers:
        leaf, twin = (torch.tensor([0.5, 1.5, 3.0], requires_grad=True) for _ in range(2))
        found, expected = compiled(leaf, n), power(twin, n)
        torch.testing.assert_close(found, expected)
        torch.autograd.backward([found, expected], [torch.ones(3)] * 2)
        torch.testing.assert_close(leaf.grad, twin.grad)


COPIED: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "onto a tensor": lambda x, n: torch.empty_like(x).copy_(n),
    "onto doubles": lambda x, n: torch.empty(2, 3, dtype=torch.float64).copy_(n),
    "onto integers": lambda x, n: torch.empty(3, dtype=torch.int64).copy_(n),
    "onto bytes": lambda x, n: torch.empty(3, dtype=torch.uint8).copy_(abs(n)),
    "onto a part": lambda x, n: (y := x * 1, y[0].copy_(n), y * 2)[2],
    "onto an input": lambda x, n: x.view(-1).copy_(n) + 1,
    "known": lambda x, n: (x * 1).copy_(2) + (x * 1).copy_(0.1) + (x * 1).copy_(True) + n,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", COPIED)
def test_a_number_that_is_copied_is_compiled(name: str, dynamic: bool | None) -> None:
    for numbers in ((2, 300, -5, 0, 1), (0.1, -2.5, 1e3, 0.0)):
        framesmith.reset()
        run = framesmith.compile(COPIED[name], dynamic=dynamic, strict=True)
        for n in numbers:
            inputs = [torch.linspace(-1, 1, 8).view(2, 4).requires_grad_() for _ in range(2)]
            found = []
            for call, leaf in zip((COPIED[name], run), inputs, strict=True):
                x = leaf * 1
                result = call(x, n)
                if result.requires_grad:
                    result.sum().backward()
                found.append([result.detach(), x.detach(), *([] if leaf.grad is None else [leaf.grad])])
            torch.testing.assert_close(*found, rtol=0, atol=0)
