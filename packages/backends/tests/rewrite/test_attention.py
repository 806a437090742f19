"""Attention with keys and values of fewer heads than queries copies nothing, and gives the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs.tracing import trace

from framesmith_backends import CpuBackend
from framesmith_backends.ir.ops import CPU_ATTENTION
from framesmith_backends.reporting import Refusal, note, noted_refusals
from framesmith_backends.rewrite.attention import grouped_heads, with_cheaper_attention

Tensor = torch.Tensor
aten = torch.ops.aten


def repeated(x: Tensor, times: int) -> Tensor:
    batch, heads, *rest = x.shape
    return x[:, :, None].expand(batch, heads, times, *rest).reshape(batch, heads * times, *rest)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    return CPU_ATTENTION(q, k, v, 0.0, False, attn_mask=mask)[0]


def inputs(length: int = 3) -> list[Tensor]:
    torch.manual_seed(0)
    mask = torch.zeros(length, 5)
    mask[:, 3:] = -torch.inf
    return [torch.randn(2, 6, length, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8), mask]


def check(function: Callable[..., Any], args: list[Tensor]) -> Any:
    gm = trace(function, args)
    wanted = gm(*args)
    found = CpuBackend().compile(gm, args)(list(args))
    for one, two in zip(found, wanted, strict=True):
        assert one.stride() == two.stride()
        torch.testing.assert_close(one, two)
    return gm


@pytest.mark.parametrize("length", [1, 3])
def test_repeated_heads_are_not_made(length: int) -> None:
    gm = check(lambda q, k, v, m: (attend(q, repeated(k, 2), repeated(v, 2), m),), inputs(length))
    rewritten = with_cheaper_attention(gm)
    [call] = rewritten.graph.find_nodes(op="call_function", target=CPU_ATTENTION)
    assert [one.op for one in call.args[:3]] == ["placeholder"] * 3
    assert not rewritten.graph.find_nodes(op="call_function", target=aten.clone.default)
    assert gm.graph.find_nodes(op="call_function", target=aten.clone.default)  # the graph given is left as it was


DECLINED: dict[str, tuple[str, Callable[..., Any]]] = {
    "the keys alone": ("no repeated", lambda q, k, v, m: (attend(q, repeated(k, 2), v.repeat(1, 2, 1, 1), m),)),
    "tiled": ("no repeated", lambda q, k, v, m: (attend(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1), m),)),
    "read elsewhere": (
        "read elsewhere",
        lambda q, k, v, m: (attend(q, r := repeated(k, 2), repeated(v, 2), m), r.sum()),
    ),
    "another dimension": (
        "another dimension",
        lambda q, k, v, m: (
            attend(
                q[:, :3],
                *[x[:, :, :, None].expand(2, 3, 5, 2, 8).reshape(2, 3, 10, 8) for x in (k, v)],
                torch.cat((m, m), 1),
            ),
        ),
    ),
    "with gaps": (
        "without gaps",
        lambda q, k, v, m: (
            attend(q, *[repeated(x.transpose(2, 3).contiguous().transpose(2, 3), 2) for x in (k, v)], m),
        ),
    ),
}


@pytest.mark.parametrize("name", DECLINED)
def test_other_calls_are_left(name: str) -> None:
    words, function = DECLINED[name]
    gm = check(function, inputs())
    [call] = gm.graph.find_nodes(op="call_function", target=CPU_ATTENTION)
    reason = grouped_heads(call)
    assert isinstance(reason, Refusal) and words in reason.reason
    assert with_cheaper_attention(gm) is gm


def test_torchs_own_grouped_heads_are_one_call() -> None:
    def run(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor]:
        return (F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True),)

    check(run, inputs())


def test_refusals_reach_every_reader() -> None:
    with noted_refusals() as of_all:
        note("fused attention", "one", Refusal("dropout"))
        with noted_refusals() as of_one:
            note("fused attention", "another", Refusal("large heads"))
    assert of_one == {"no fused attention for another": "large heads"}
    assert of_all == {"no fused attention for one": "dropout", **of_one}
