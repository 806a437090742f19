"""Attention of compiled programs on the CPU: our own code forward, ATen's backward, eager mode's results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import framesmith
from framesmith_backends.native_ops import base
from framesmith_backends.native_ops.attention import operator as attention

Tensor = torch.Tensor
WIDTH, HEADS = 32, 4


@pytest.fixture(autouse=True)
def fresh() -> None:
    framesmith.reset()
    torch.manual_seed(0)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The tasks of each call of our own code."""
    found: list[int] = []

    class Counted(base.Code):
        @property
        def run(self) -> Callable[..., None]:
            run = super().run

            def counted(job: Any, tasks: int, *rest: Any) -> None:
                if self.name == "attention":
                    found.append(tasks)
                run(job, tasks, *rest)

            return counted

    monkeypatch.setattr(base, "Code", Counted)
    attention.CODE.clear()
    yield found
    attention.CODE.clear()


def heads(x: Tensor, count: int = HEADS) -> Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def plain(x: Tensor) -> Tensor:
    return joined(F.scaled_dot_product_attention(heads(x), heads(x * 2), heads(x.sin())))


def causal(x: Tensor) -> Tensor:
    return joined(F.scaled_dot_product_attention(heads(x), heads(x.sin()), heads(x), is_causal=True))


def padded(x: Tensor) -> Tensor:
    seen = torch.arange(x.shape[1]) < x.shape[1] - 2
    return joined(F.scaled_dot_product_attention(heads(x), heads(x), heads(x), attn_mask=seen[None, None, None]))


def biased(x: Tensor) -> Tensor:
    positions = torch.arange(x.shape[1])
    bias = (positions[:, None] - positions).abs().neg().float()
    return joined(F.scaled_dot_product_attention(heads(x), heads(x), heads(x), attn_mask=bias, scale=0.2))


def grouped(x: Tensor) -> Tensor:
    keys = heads(x[..., : WIDTH // 2], HEADS // 2)
    return joined(F.scaled_dot_product_attention(heads(x), keys, keys.sin(), enable_gqa=True))


def nothing_seen(x: Tensor) -> Tensor:
    seen = torch.arange(x.shape[1])[:, None] > torch.arange(x.shape[1])
    return joined(F.scaled_dot_product_attention(heads(x), heads(x), heads(x), attn_mask=seen))


def last(x: Tensor) -> Tensor:
    return joined(F.scaled_dot_product_attention(heads(x[:, -1:]), heads(x), heads(x)))


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    program.__name__: program for program in (plain, causal, padded, biased, grouped, nothing_seen, last)
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_inference(name: str, runs: list[int]) -> None:
    program, x = PROGRAMS[name], torch.randn(2, 600, WIDTH)
    with torch.no_grad():
        wanted = program(x)
        assert not runs
        found = framesmith.compile(program, strict=True)(x)
    assert len(runs) == 1
    assert found.stride() == wanted.stride()
    torch.testing.assert_close(found, wanted)


def with_gradient(program: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.clone().requires_grad_()
    found = program(leaf)
    found.backward(torch.ones_like(found).cumsum(1))
    assert leaf.grad is not None
    return found.detach(), leaf.grad


@pytest.mark.parametrize("name", PROGRAMS)
def test_training(name: str, runs: list[int]) -> None:
    program, x = PROGRAMS[name], torch.randn(2, 70, WIDTH)
    wanted = with_gradient(program, x)
    assert not runs
    found = with_gradient(framesmith.compile(program, strict=True), x)
    assert bool(runs) == (name != "last")  # which is too small
    torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-4)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("trains", [False, True])
def test_dynamic_shapes(name: str, trains: bool, runs: list[int]) -> None:
    program = PROGRAMS[name]
    compiled = framesmith.compile(program, dynamic=True, strict=True, recompile_limit=1)
    for batch, length in ((2, 300), (3, 17), (2, 64), (4, 530)):
        x = torch.randn(batch, length, WIDTH)
        if trains:
            torch.testing.assert_close(with_gradient(compiled, x), with_gradient(program, x), rtol=1e-4, atol=2e-3)
        else:
            with torch.no_grad():
                torch.testing.assert_close(compiled(x), program(x))
    assert len(runs) == (1 if name == "last" else 4)  # shorter ones are too small for one query


def test_layers(runs: list[int]) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, dropout=0.0, batch_first=True)
    x = torch.randn(3, 50, WIDTH)
    compiled = framesmith.compile(layer)
    wanted = layer(x).square().sum()
    wanted.backward()
    gradients = [one.grad for one in layer.parameters()]
    layer.zero_grad(set_to_none=True)
    found = compiled(x).square().sum()
    found.backward()
    assert runs
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close([one.grad for one in layer.parameters()], gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["bfloat16", "float64", "dropout"])
def test_what_stays_with_aten(kind: str, runs: list[int]) -> None:
    x = torch.randn(2, 40, WIDTH).to(torch.float32 if kind == "dropout" else getattr(torch, kind))

    def program(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(heads(x), heads(x), heads(x), dropout_p=0.5 if kind == "dropout" else 0.0)

    torch.manual_seed(3)
    wanted = program(x)
    torch.manual_seed(3)
    torch.testing.assert_close(framesmith.compile(program, strict=True)(x), wanted)
    assert not runs
