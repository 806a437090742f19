"""Run by test_attention_gradients.py with TRITON_INTERPRET=1: training steps of attention on CPU tensors.

Each case is compiled by the cuda backend, forward and backward; results and gradients are as near to those in float64
as eager's, what the forward pass keeps is smaller than the scores, and attention and its gradients are kernels.
"""

from __future__ import annotations

import math
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import framesmith
from framesmith_backends import cuda
from framesmith_backends.ir.fused.attention import AttentionTile, FusedAttention
from framesmith_backends.ir.fused.attention_gradient import FusedAttentionGradient
from framesmith_backends.ir.verify import verify_item
from framesmith_backends.schedule.matmuls import attention, attention_gradient
from framesmith_dynamo.values.higher_order import flex_attention as flex_values
from integration_tests.harness.sweeps import a_part

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
Tensor = torch.Tensor
LOWEST = torch.finfo(F32).min


@dataclass(frozen=True)
class Case:
    """Sizes, how scores are changed, and how many kernels of gradients there are: none is attention as it was."""

    change: Callable[..., Tensor]
    captured: tuple[tuple[int, ...], ...] = ()
    heads: int = 2
    shared: int = 2
    queries: int = 40
    keys: int = 40
    depth: int = 16
    length: int = 16
    safe: bool = True
    turned: bool = False
    #: Whether queries, keys and values are computed in the same graph, and the result is read there.
    computed: bool = False
    #: The tensors whose gradients are computed.
    wanted: tuple[int, ...] = (0, 1, 2)
    gradients: int = 2
    dtype: torch.dtype = BF16
    #: Functions applied to the probabilities.
    weights: Callable[[Tensor], Tensor] | None = None


def hidden(scores: Tensor, seen: Tensor) -> Tensor:
    return torch.where(seen, scores, torch.full((), -math.inf, device=scores.device))


def in_blocks(i: Tensor, j: Tensor) -> Tensor:
    return (i // 16 == j // 16) | (j < 3)


CASES: dict[str, Case] = {
    "plain": Case(lambda s, h, i, j: s),
    "of float32": Case(lambda s, h, i, j: hidden(s, i >= j), dtype=F32),
    "of float16": Case(lambda s, h, i, j: hidden(s, i >= j), dtype=F16),
    "softmax that is not safe": Case(lambda s, h, i, j: hidden(s, i >= j), safe=False),
    "causal": Case(lambda s, h, i, j: hidden(s, i >= j)),
    "causal, with scores that are taken out": Case(
        lambda s, h, i, j: hidden(torch.where(i >= j, s, s.detach()).exp(), i >= j)
    ),
    "a window": Case(lambda s, h, i, j: hidden(s, (i - j).abs() < 9), queries=60, keys=60),
    "fully masked rows": Case(lambda s, h, i, j: hidden(s, (i % 3 != 0) & (i >= j))),
    "fully masked rows of a softmax that is not safe": Case(lambda s, h, i, j: hidden(s, i % 3 != 0), safe=False),
    # Rows of padding alone have equal weights: sums of the size of the lowest number would round their number away.
    "padding hidden by the lowest number": Case(lambda s, h, i, j: torch.where((i < 24) & (j < 24), s, LOWEST)),
    "of float32, far below zero": Case(lambda s, h, i, j: hidden(s - 1e6 * (i % 2), i >= j), dtype=F32),
    "nothing is seen": Case(lambda s, h, i, j: hidden(s, i < 0)),
    "distant blocks": Case(lambda s, h, i, j: hidden(s, in_blocks(i, j)), queries=40, keys=100),
    "slopes, causal": Case(lambda s, h, i, j, x: hidden(s - x[h] * (i - j), i >= j), ((2,),)),
    "a table": Case(lambda s, h, i, j, x: s + x, ((2, 2, 40, 40),)),
    "a mask that is a table": Case(lambda s, h, i, j, x: hidden(s, x > 0.5), ((40, 40),)),
    "documents": Case(lambda s, h, i, j, x: hidden(s, (x[i] > 0) == (x[j] > 0)), ((40,),)),
    "capped": Case(lambda s, h, i, j: 5 * torch.tanh(s / 5)),
    "capped, causal": Case(lambda s, h, i, j: hidden(5 * torch.tanh(s / 5), i >= j)),
    "hidden by the scores": Case(lambda s, h, i, j: hidden(s, s > 0)),
    "scores by themselves": Case(lambda s, h, i, j: s * s.sigmoid() + s.abs()),
    "heads share keys": Case(lambda s, h, i, j, x: hidden(s - x[h], i >= j), ((4,),), heads=4, shared=2),
    "other lengths": Case(lambda s, h, i, j: hidden(s, i + 20 >= j), queries=37, keys=57, depth=24, length=40),
    "as many queries as elements": Case(lambda s, h, i, j: s, queries=32, keys=48, depth=32, length=32),
    "80": Case(lambda s, h, i, j: hidden(s, i >= j), depth=80, length=80),
    "256": Case(lambda s, h, i, j: hidden(s, i >= j), depth=256, length=256, heads=1, shared=1),
    "turned": Case(lambda s, h, i, j: hidden(s, i >= j), turned=True),
    "computed before": Case(lambda s, h, i, j, x: s - x.exp()[h] * (i - j), ((2,),), computed=True, shared=1),
    "of queries alone": Case(lambda s, h, i, j: hidden(s, i >= j), wanted=(0,), gradients=1),
    "of keys alone": Case(lambda s, h, i, j: hidden(s, i >= j), wanted=(1,), gradients=1),
    "of values alone": Case(lambda s, h, i, j: hidden(s, i >= j), wanted=(2,), gradients=1),
    "of queries and values": Case(lambda s, h, i, j: hidden(s, i >= j), wanted=(0, 2)),
    # Gradients of what scores read are sums over scores; others read the weights, which are kept then.
    "of a table": Case(lambda s, h, i, j, x: s + x, ((2, 2, 40, 40),), wanted=(0, 1, 2, 3), gradients=0),
    "of slopes": Case(lambda s, h, i, j, x: s - x[h] * (i - j), ((2,),), wanted=(0, 1, 2, 3), gradients=0),
    "weights that are scaled": Case(lambda s, h, i, j: s, weights=lambda w: w * 0.5, gradients=0),
    "as many keys as elements": Case(lambda s, h, i, j: s, queries=48, keys=32, depth=32, length=32, gradients=0),
    "heads of 300": Case(lambda s, h, i, j: s, depth=300, length=8, heads=1, shared=1, gradients=0),
    "double": Case(lambda s, h, i, j: s, dtype=torch.float64, gradients=0),
}


def function_of(case: Case) -> Callable[..., Tensor]:
    def run(q: Tensor, k: Tensor, v: Tensor, *captured: Tensor) -> Tensor:
        if case.computed:
            q, k, v = q * 1.5, torch.cat([k[..., 8:], -k[..., :8]], -1), v.sin()
        batch, heads, queries, depth = q.shape
        shared, keys = k.shape[1:3]
        kind = torch.float64 if q.dtype == torch.float64 else torch.float32
        rows = q.reshape(batch, shared, heads // shared * queries, depth).to(kind)
        scores = (rows @ k.to(kind).transpose(-2, -1)).view(batch, heads, queries, keys) * depth**-0.5
        h = torch.arange(heads).view(1, heads, 1, 1)
        i, j = torch.arange(queries).view(1, 1, queries, 1), torch.arange(keys).view(1, 1, 1, keys)
        scores = case.change(scores, h, i, j, *captured)
        weights = (torch._safe_softmax if case.safe else torch.softmax)(scores, -1).to(q.dtype)
        weights = weights if case.weights is None else case.weights(weights)
        means = weights.view(batch, shared, heads // shared * queries, keys) @ v
        means = means.view(batch, heads, queries, v.shape[3])
        return means.transpose(1, 2).reshape(batch, queries, -1).sin() if case.computed else means

    return run


def inputs_of(name: str) -> list[Tensor]:
    case, generator = CASES[name], torch.Generator().manual_seed(len(name))
    sizes = (
        (case.heads, case.queries, case.depth),
        (case.shared, case.keys, case.depth),
        (case.shared, case.keys, case.length),
    )
    given = [torch.randn(2, *size, generator=generator).to(case.dtype) for size in sizes]
    if case.turned:
        given = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in given]
    given += [torch.randn(size, generator=generator) for size in case.captured]
    return [x.requires_grad_(at in case.wanted) for at, x in enumerate(given)]


def step(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Return the results, and the gradients of inputs that require them."""
    result = function(*inputs)
    weight = torch.randn(result.shape, generator=torch.Generator().manual_seed(1)).to(result.dtype)
    wanted = [x for x in inputs if x.requires_grad]
    return [result, *torch.autograd.grad(result, wanted, weight.to(result.dtype))]


@contextmanager
def watched(small: bool) -> Iterator[list[cuda.TritonStages]]:
    """The stages of what is compiled meanwhile, of attention in `small` tiles or in those that are chosen."""
    made, tiles = cuda.launcher, (attention.tile_for, attention_gradient.gradient_tile)
    seen: list[cuda.TritonStages] = []

    def launcher(stages: cuda.TritonStages, *rest: Any) -> Any:
        seen.append(stages)
        return made(stages, *rest)

    cuda.launcher = launcher
    if small:
        attention.tile_for = lambda *sizes: AttentionTile(32, 16, 4, 2)
        attention_gradient.gradient_tile = lambda *sizes: AttentionTile(16, 32, 4, 2)
    try:
        yield seen
    finally:
        cuda.launcher, attention.tile_for, attention_gradient.gradient_tile = made, *tiles


def check(name: str, small: bool = True) -> None:
    case, inputs, function = CASES[name], inputs_of(name), function_of(CASES[name])
    framesmith.reset()
    with watched(small) as stages:
        found = step(framesmith.compile(function, backend="cuda", fullgraph=True), inputs)
    exact_inputs = [x.detach().double().requires_grad_(x.requires_grad) for x in inputs]
    wanted, exact = step(function, inputs), step(function, exact_inputs)
    check_plans(case, stages)
    for one, other, true in zip(found, wanted, exact, strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        assert torch.equal(one.isnan(), other.isnan()), "NaN elsewhere"
        eps = torch.finfo(torch.bfloat16 if case.dtype == F32 else case.dtype).eps  # rounded as TF32 would be
        least = eps * max(1.0, float(true.detach().nan_to_num().abs().max()))
        mine, its = ((result.detach().double() - true.detach()).nan_to_num().abs().max() for result in (one, other))
        assert mine <= 1.5 * its + 4 * least, (mine, its, least)


def check_plans(case: Case, stages: list[cuda.TritonStages]) -> None:
    forward, backward = stages
    for one in forward.plan.items_of(FusedAttention):
        verify_item(one)
    for gradient in backward.plan.items_of(FusedAttentionGradient):
        verify_item(gradient)
    assert len(backward.plan.items_of(FusedAttentionGradient)) == case.gradients, backward.plan.text()
    if case.gradients:
        assert len(forward.plan.items_of(FusedAttention)) == 1, forward.plan.text()
        kept = [node.meta["val"].numel() for node in forward.graph.graph.output_node().args[0]]
        table = max((math.prod(size) for size in case.captured if sum(n > 1 for n in size) > 1), default=0)
        assert max(kept) <= max(table, 2 * case.heads * max(case.queries, case.keys) * max(case.depth, case.length))
        tables = [numel for numel in kept if table and numel == table]
        assert len(tables) <= 1, kept


def inputs_and_function(name: str) -> tuple[list[Tensor], Callable[..., Tensor]]:
    framesmith.reset()
    return inputs_of(name), function_of(CASES[name])


def same(found: Any, wanted: Any, tolerance: float) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def check_second_derivatives() -> None:
    inputs, function = inputs_and_function("of float32")

    def twice(run: Callable[..., Tensor]) -> list[Tensor]:
        first = torch.autograd.grad(run(*inputs).sin().sum(), inputs, create_graph=True)
        return [*first, *torch.autograd.grad(sum(x.square().sum() for x in first), inputs)]

    with watched(small=True):
        same(twice(framesmith.compile(function, backend="cuda", fullgraph=True)), twice(function), 1e-3)


def check_flex_attention() -> None:
    """torch's function, which takes no gradients on the CPU but as it is asked here."""
    inputs, function = inputs_and_function("heads share keys")
    refuses = flex_values._why_refused

    def run(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 40, 40, device="cpu")
        found = flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s - x[h], block_mask=mask, enable_gqa=True)
        assert isinstance(found, Tensor)
        return found

    flex_values._why_refused = lambda tensors, shares: refuses([x.detach() for x in tensors], shares)
    try:
        with watched(small=True) as stages:
            found = step(framesmith.compile(run, backend="cuda", fullgraph=True), inputs)
    finally:
        flex_values._why_refused = refuses
    check_plans(CASES["heads share keys"], stages)
    same(found, step(function, inputs), 5e-2)


def check_sums_of_rows() -> None:
    inputs = [x.detach() for x in inputs_and_function("causal")[0]]

    def run(q: Tensor, k: Tensor, v: Tensor) -> Any:
        mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i % 3 != 0), None, None, 40, 40, device="cpu")
        return flex_attention(q, k, v, block_mask=mask, return_lse=True)

    with watched(small=True) as stages:
        found = framesmith.compile(run, backend="cuda", fullgraph=True)(*inputs)
        wanted = run(*inputs)
    assert len(stages[0].plan.items_of(FusedAttention)) == 1
    same(found, wanted, 2e-2)


def check_hooks() -> None:
    """Gradients that are kept, and those that hooks see and change, of what is computed before and after."""
    inputs, function = inputs_and_function("causal")

    def run(attend: Callable[..., Tensor]) -> list[Tensor]:
        q, k, v = (x.detach().requires_grad_() * 1 for x in inputs)
        seen: list[Tensor] = []
        q.register_hook(lambda grad: seen.append(grad) or grad * 2)
        k.retain_grad(), v.retain_grad()
        result = attend(q, k, v)
        result.retain_grad()
        (result * 3).sum().backward()
        return [*seen, k.grad, v.grad, result.grad, q.detach()]  # type: ignore[list-item]

    with watched(small=True) as stages:
        found = run(framesmith.compile(function, backend="cuda", fullgraph=True))
    assert len(stages[1].plan.items_of(FusedAttentionGradient)) == 2
    same(found, run(function), 5e-2)


def check_twice() -> None:
    """The same bits each time, of two passes over one graph too, and what is written to between them is refused."""
    inputs, function = inputs_and_function("slopes, causal")
    with watched(small=True):
        result = framesmith.compile(function, backend="cuda", fullgraph=True)(*inputs)
        first, second = (torch.autograd.grad(result.sum(), inputs[:3], retain_graph=True) for _ in range(2))
        assert all(map(torch.equal, first, second))
        result.detach().zero_()  # eager mode does not keep it, and neither do we
        same(torch.autograd.grad(result, inputs[:3], torch.ones_like(result), retain_graph=True), first, 0)


#: In the tiles that are chosen for these sizes.
CHOSEN = ("slopes, causal", "80", "of float16")


def attempts() -> list[tuple[str, Callable[[], None]]]:
    """Return those that a run makes: one in twelve, in long runs all."""
    return a_part(all_attempts(), 12)


def all_attempts() -> Iterator[tuple[str, Callable[[], None]]]:
    for name in CASES:
        yield name, lambda name=name: check(name)  # type: ignore[misc]
    yield "flex attention", check_flex_attention
    yield "flex attention with sums of rows", check_sums_of_rows
    yield "second derivatives", check_second_derivatives
    yield "hooks", check_hooks
    yield "twice", check_twice
    for name in CHOSEN:
        yield f"{name}, as chosen", lambda name=name: check(name, small=False)  # type: ignore[misc]


def main() -> int:
    """The number of attempts that fail."""
    warnings.simplefilter("error", framesmith.FramesmithWarning)
    torch.backends.cuda.matmul.allow_tf32 = True  # float32 is attention in one kernel then; the interpreter is exact
    failures = 0
    for name, attempt in attempts():
        try:
            attempt()
            print("ok", name, flush=True)
        except Exception:
            failures += 1
            print("FAILED", name)
            traceback.print_exc(file=sys.stdout, limit=-4)
    return failures


if __name__ == "__main__":
    sys.exit(main())
