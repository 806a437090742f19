"""Programs of flex attention: equal eager mode in all their uses, with no more graphs and breaks than torch.compile."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import framesmith

Tensor = torch.Tensor
LENGTH = 150
TOLERANCE = 2e-5


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    framesmith.reset()
    torch.compiler.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def given(length: int = LENGTH, shared: int = 4, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    sizes = (4, length), (shared, length), (shared, length)
    return [torch.randn(2, heads, rows, 32).to(dtype) for heads, rows in sizes]


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


def slopes() -> Callable[..., Any]:
    steps = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    return lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s - steps[h] * (i - j).abs())


def window() -> Callable[..., Any]:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Any:
        length = q.shape[2]
        mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < 40), None, None, length, length, device="cpu")
        return flex_attention(q, k, v, block_mask=mask)

    return fn


def documents() -> Callable[..., Any]:
    names = torch.arange(400) // 60

    def same(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (names[i] == names[j]) & (i >= j)

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Any:
        mask = create_block_mask(same, None, None, q.shape[2], k.shape[2], device="cpu")
        return flex_attention(q, k, v, block_mask=mask)

    return fn


def capped() -> Callable[..., Any]:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Any:
        y = flex_attention(q * 2, k, v, score_mod=lambda s, b, h, i, j: 5 * torch.tanh(s / 5), scale=0.3)
        return y.transpose(1, 2).flatten(2).relu()

    return fn


def grouped() -> Callable[..., Any]:
    return lambda q, k, v: flex_attention(q, k[:, :2], v[:, :2], score_mod=lambda s, b, h, i, j: s + h, enable_gqa=True)


def logarithms() -> Callable[..., Any]:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Any:
        y, aux = flex_attention(q, k, v, return_aux=flex.AuxRequest(lse=True))
        return y * torch.sigmoid(aux.lse).unsqueeze(-1)

    return fn


def distances() -> Callable[..., Any]:
    table = torch.randn(4, 800)

    def near(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where((i - j).abs() < 99, score + table[h, i - j + 400], -float("inf"))

    return lambda q, k, v: flex_attention(q, k, v, score_mod=near)


class Layer(nn.Module):
    """A layer whose scores' bias is learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(4))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + self.bias[h] * (j - i))


PROGRAMS: dict[str, Callable[[], Callable[..., Any]]] = {
    "slopes": slopes, "window": window, "documents": documents, "capped": capped, "grouped": grouped,
    "logarithms": logarithms, "distances": distances, "layer": Layer,
}  # fmt: skip
programs = pytest.mark.parametrize("name", PROGRAMS)


def check(got: Any, want: Any, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    assert got.stride() == want.stride()


@programs
def test_inference_and_second_calls(name: str) -> None:
    fn, inputs = PROGRAMS[name](), [given(), given()]
    compiled = framesmith.compile(fn, fullgraph=True, strict=True)
    with torch.no_grad():
        for some in inputs:
            check(compiled(*some), fn(*some))
    assert framesmith.stats()["recompilations"] == 0


@programs
def test_low_precision(name: str) -> None:
    fn, some = PROGRAMS[name](), given(dtype=torch.bfloat16)
    with torch.no_grad():
        check(framesmith.compile(fn, fullgraph=True, strict=True)(*some), fn(*some), 5e-2)


@programs
def test_dynamic_sizes(name: str) -> None:
    fn = PROGRAMS[name]()
    compiled = framesmith.compile(fn, fullgraph=True, strict=True, dynamic=True)
    with torch.no_grad():
        for length in (150, 201, 270):
            some = given(length)
            check(compiled(*some), fn(*some))
    assert framesmith.stats()["recompilations"] == 0


def test_training_of_what_scores_capture() -> None:
    some, gradients = given(), []
    for compiler in (lambda fn: fn, lambda fn: framesmith.compile(fn, fullgraph=True, strict=True)):
        torch.manual_seed(1)
        layer = Layer()
        step = compiler(layer)
        for _ in range(2):
            step(*some).square().sum().backward()
        gradients.append(layer.bias.grad)
    check(gradients[1], gradients[0], 1e-3)


@pytest.mark.parametrize("place", ("score", "mask"))
def test_an_error_in_a_body_is_eager_modes(place: str) -> None:
    def score(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        raise ValueError("not of these scores")

    def mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        raise ValueError("not of these scores")

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Any:
        if place == "score":
            return flex_attention(q, k, v, score_mod=score)
        return flex_attention(q, k, v, block_mask=create_block_mask(mask, None, None, 150, 150, device="cpu"))

    with pytest.raises(Exception, match="not of these scores") as want:
        fn(*given())
    compiled = framesmith.compile(fn)
    for _ in range(2):
        with pytest.raises(type(want.value), match="not of these scores"):
            compiled(*given())
    assert isinstance(want.value, ValueError) == (place == "mask")  # torch wraps what a score function raises


@programs
def test_no_more_graphs_and_breaks_than_torch_compile(name: str) -> None:
    from torch._dynamo.utils import counters

    fn, some, graphs = PROGRAMS[name](), given(), list[Any]()

    def counted(gm: Any, inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    counters.clear()
    with torch.no_grad():
        torch.compile(fn, backend=counted)(*some)
        theirs = len(graphs), sum(counters["graph_break"].values())
        found = framesmith.explain(fn, *some)
    assert (found.graph_count, found.break_count) == (1, 0)
    assert theirs >= (1, 0)
