"""Every lowering rule is reached by some graph that the pipeline makes: what none reaches is dead code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from framesmith_aot import CompiledGraph, compile_graph
from framesmith_aten.contract import BoxedFn, Role
from framesmith_backends import find_backend
from framesmith_backends.lower import graph
from framesmith_backends.lower.registry import RULES, VIEWS, Rule
from framesmith_backends.lower.scope import Decline
from framesmith_backends.target import CPU

aten = torch.ops.aten

FLOATS = torch.randn(4, 6)
INTEGERS = torch.arange(24).reshape(4, 6)
SEQUENCE = torch.randn(2, 4, 6)
IMAGE = torch.randn(2, 4, 5, 5)
VOLUME = torch.randn(2, 3, 4, 4, 4)
POSITIVE = FLOATS.abs() + 0.1


def of_names(names: str) -> list[Callable[..., torch.Tensor]]:
    return [getattr(torch, name) for name in names.split()]


def written_parts(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x).copy_(x)
    y[1:] += x[:-1]
    y[0] = x[1]
    y[::2] *= 2
    y[2] = torch.tensor(1.5)
    return y


def norms(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    mean, var, weight = torch.zeros(4), torch.ones(4), torch.ones(4) * x.sum()
    return (
        # what aot makes of torch.batch_norm
        aten._native_batch_norm_legit.default(x, weight, weight, mean, var, True, 0.1, 1e-5)[0],
        aten._native_batch_norm_legit_no_training.default(x, weight, weight, mean, var, 0.1, 1e-5)[0],
        aten._native_batch_norm_legit.no_stats(x, weight, weight, True, 0.1, 1e-5)[0],
        F.group_norm(x, 2, weight, weight),
        F.layer_norm(x, (5,), weight[:1].expand(5), weight[:1].expand(5)),
    )


UPSAMPLINGS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    lambda x: F.interpolate(x, scale_factor=2, mode="nearest-exact"),
]


#: Example -> functions of it; those of floating point are run with gradients too.
PROGRAMS: list[tuple[torch.Tensor, list[Callable[[torch.Tensor], object]]]] = [
    (
        FLOATS,
        [
            *of_names("abs neg relu floor ceil trunc round sgn sign exp exp2 expm1 sin cos tanh erf sigmoid"),
            *of_names("isnan isinf tan atan sinh cosh asinh erfc"),
            lambda x: torch.atan2(x, x.exp()) + torch.hypot(x, x.exp()),
            lambda x: torch.asin(x.tanh() * 0.9) + torch.acos(x.tanh() * 0.9) + torch.atanh(x.tanh() * 0.9),
            lambda x: torch.acosh(x.exp() + 1),
            lambda x: torch.lgamma(x) + torch.erfinv(x.tanh() * 0.9) + torch.logaddexp(x, x.exp()) + x.logaddexp2(-x),
            lambda x: torch.special.i0(x) + torch.special.i0e(x) + torch.special.i1(x) + torch.special.i1e(x),
            F.gelu, F.silu, F.mish, F.hardsigmoid, F.hardswish, F.hardtanh, F.softplus, F.elu, F.leaky_relu,
            lambda x: F.threshold(x, 0.1, 2.0), lambda x: F.gelu(x, approximate="tanh"),
            lambda x: x + 1 - x * 2 / 3, lambda x: torch.rsub(x, 1, alpha=2) + torch.rsub(x, x.exp(), alpha=2),
            lambda x: x.detach() // 2.0 + x % 2.0 + torch.remainder(x, x.exp()),
            lambda x: torch.fmod(x, x.exp()) + torch.fmod(x, 2.0),
            lambda x: torch.div(x, 2.0, rounding_mode="trunc"), lambda x: x**3 + 2.0**x + x.exp() ** x,
            lambda x: torch.fmax(x, x * 2) + torch.fmin(x, x * 3) + torch.copysign(x, -x) + torch.copysign(x, -1.0),
            lambda x: torch.xlogy(x, x * x) + torch.xlogy(2.0, x * x) + torch.xlogy(x, 3.0),
            lambda x: torch.maximum(x, x * 2) + torch.minimum(x, x * 3), lambda x: torch.lerp(x, x * 2, 0.3),
            lambda x: torch.lerp(x, x * 2, x), lambda x: torch.addcmul(x, x, x) + torch.addcdiv(x, x, x.exp()),
            lambda x: x.clamp(-1, 1) + x.clamp(x * 0, x.exp()) + x.clamp_min(-1.0) + x.clamp_max(1.0),
            lambda x: torch.clamp_min(x, x * 2) + torch.clamp_max(x, x * 3),
            lambda x: x.masked_fill(x > 0, 1.0) + x.masked_fill(x < 0, x.sum()) + torch.where(x > 0, x, x * 2),
            lambda x: (x == x * 2) | (x != 1) & (x < x * 2) ^ (x <= x * 3) & (x > x * 2) & (x >= x * 3),
            lambda x: (x == 1) | (x < 1) & (x <= 1) & (x > 1) & (x >= 1) & (x != x * 2),
            lambda x: torch.logical_and(x, x > 0) | torch.logical_or(x, x > 0) | torch.logical_xor(x, x > 0),
            lambda x: torch.logical_not(x), lambda x: x.double() + 1, lambda x: x.t().clone() + 1,
            lambda x: torch.softmax(x, -1) + torch.log_softmax(x, 0), lambda x: torch.logsumexp(x, 1),
            lambda x: (x.cumsum(0), x.cumprod(1), x.logcumsumexp(1), x.cummax(0).values, x.cummin(1).values),
            lambda x: x.sum() + x.sum(0) + x.mean() + x.mean(0) + x.prod() + x.prod(0),
            lambda x: (x.argmax(1), x.argmin(), *x.max(0), *x.min(1)),
            lambda x: x.amax(1) + x.amin(1) + x.max() + x.min(), lambda x: (x.var(0), x.std(0)),
            lambda x: (*torch.var_mean(x, 0), *torch.std_mean(x, 0)), lambda x: torch.linalg.vector_norm(x, 2, 1),
            lambda x: ((x > 0).any() | (x > 0).any(0), (x > 0).all() | (x > 0).all(0)),
            lambda x: (torch.any(x > 0, dim=(0, 1)), torch.all(x > 0, dim=(0, 1))),
            lambda x: F.mse_loss(x, x * 2) + F.smooth_l1_loss(x, x * 2) + F.huber_loss(x, x * 2),
            lambda x: F.binary_cross_entropy_with_logits(x, x * 2),
            lambda x: F.nll_loss(x.log_softmax(1), torch.arange(4)),
            lambda x: F.nll_loss(x.reshape(2, -1, 1, 1).log_softmax(1), torch.zeros(2, 1, 1, dtype=torch.int64)),

            written_parts,
            lambda x: F.pad(x, (1, 2)) + 1, lambda x: torch.cat([x, x * 2]) + torch.stack([x, x * 2]).view(8, 6),
            lambda x: x.flip(0) + x.repeat(1, 2)[:, 3:9] + torch.tril(x) + torch.triu(x) + x.roll(1, 1),
            lambda x: F.pad(x, (1, 2), mode="replicate") + 1,
            lambda x: x[1].exp() + x[:, 1].sum() + x[1:3].exp().sum(0), lambda x: x.view(2, 12).exp(),
            lambda x: x[:1].expand(4, 6).exp() + x.unsqueeze(1).exp().squeeze(1) + x[:1].squeeze().exp(),
            lambda x: x[:1, :1].squeeze((0, 1)).exp() + x.diagonal().exp().sum(),
            lambda x: x[torch.arange(4), torch.arange(4)] + x.index_select(0, torch.arange(4))[:, 1],
            lambda x: x.gather(1, torch.arange(4)[:, None]) + x.take(torch.arange(6)) + F.embedding(torch.arange(4), x),
            lambda x: F.embedding_bag(torch.arange(4).view(2, 2), x),
            lambda x: torch.searchsorted(x, x.exp()) + torch.searchsorted(x[0], 0.5) + torch.bucketize(x, x[0]),
            lambda x: torch.bucketize(0.5, x[0]) + x,
            lambda x: x.index_add(0, torch.arange(4), x) + x.scatter_add(1, torch.arange(4)[:, None], x[:, :1]),
            lambda x: x.index_copy(0, torch.arange(4), x * 2) + x.index_fill(1, torch.arange(3), 2.0),
            lambda x: x.index_fill(1, torch.arange(3), x.sum()) + x.index_put((torch.arange(4),), x * 2),
            lambda x: x.scatter(1, torch.arange(4)[:, None], x[:, :1] * 2),
            lambda x: x.scatter(1, torch.arange(4)[:, None], 2.0),
            lambda x: x.split(2)[1].exp() + x.split([1, 3])[0].exp() + x.unbind(1)[2].exp().sum(),
        ],
    ),
    (POSITIVE, [*of_names("sqrt rsqrt log log2 log10 log1p reciprocal")]),
    (SEQUENCE, [lambda x: F.interpolate(x, scale_factor=2, mode="linear"), *UPSAMPLINGS, lambda x: x @ x[:, :1].mT]),
    (
        IMAGE,
        [
            norms, lambda x: F.max_pool2d(x, 3, 2, 1), lambda x: F.avg_pool2d(x, 3, 2, 1),
            lambda x: F.pad(x, (1, 2, 2, 1), mode="replicate"), lambda x: F.pad(x, (0, 0, 1, 1), mode="reflect"),
            lambda x: F.adaptive_avg_pool2d(x, (5, 1)), lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
            *UPSAMPLINGS,
        ],
    ),
    (
        VOLUME,
        [
            lambda x: F.pad(x, (1,) * 6, mode="replicate"), lambda x: F.pad(x, (0, 0, 1, 1, 1, 1), mode="reflect"),
            lambda x: F.max_pool3d(x, 2), lambda x: F.avg_pool3d(x, 2), *UPSAMPLINGS,
            lambda x: F.interpolate(x, scale_factor=(2, 1, 1), mode="trilinear"),
            # its backward pass, by 1 and whole sizes
            lambda x: F.interpolate(x, scale_factor=(1, 1, 1), mode="trilinear"),
        ],
    ),
    (
        INTEGERS,
        [
            lambda x: torch.bitwise_not(x) + (x & 3) + (x | 4) + (x ^ (x + 1)) + (x & (x + 1)) + (x | (x + 1)),
            lambda x: (x << 1) + (x << x) + torch.bitwise_left_shift(x, x + 1) + torch.bitwise_left_shift(x, 2),
            lambda x: (x >> 1) + (x >> x) + torch.bitwise_right_shift(x, x + 1) + torch.bitwise_right_shift(x, 2),
            lambda x: torch.bitwise_left_shift(3, x) + torch.bitwise_right_shift(-3, x),
            lambda x: torch.full((4, 6), 2.0) + torch.full_like(x, 3) + x.new_full((4, 6), 4),
            lambda x: torch.zeros_like(x.t()) + torch.ones_like(x.t()) + torch.empty_like(x.t()).fill_(1) + x.t(),
            lambda x: torch.arange(6) + torch.arange(1, 7) + torch.arange(0, 12, 2) + x,
            lambda x: torch.where(x > 1, x, 2),
        ],
    ),
]  # fmt: skip


class Reached(dict[str, object]):
    """A rule table that notes which rules gave a result."""

    def __init__(self, rules: dict[str, object], seen: set[str]) -> None:
        super().__init__(rules)
        self.seen = seen

    def get(self, key: str, default: object = None) -> object:
        rule = super().get(key, default)
        if rule is None:
            return None

        def noted(*args: object, **kwargs: object) -> object:
            result = rule(*args, **kwargs)  # type: ignore[operator]
            self.seen.add(key)
            return result

        return noted


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    seen: set[str] = set()
    monkeypatch.setattr(graph, "RULES", Reached(dict(RULES), seen))
    monkeypatch.setattr(graph, "VIEWS", Reached(dict(VIEWS), seen))
    yield seen


def results(value: object) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)  # type: ignore[return-value]


def through_aot(
    function: Callable[[torch.Tensor], object], example: torch.Tensor, compiler: Callable[..., Any]
) -> CompiledGraph:
    """The function through aot, with the operators that the `cpu` backend lowers itself."""
    ops = fx.Graph()
    call = ops.call_function(lambda x: results(function(x)), (ops.placeholder("x"),))
    count = len(results(function(example)))
    ops.output(tuple(ops.call_function(lambda values, at: values[at], (call, at)) for at in range(count)))
    lowers = find_backend("cpu").lowers
    return compile_graph(fx.GraphModule({}, ops), [example], compiler=compiler, lowers=lowers)


def drive(function: Callable[[torch.Tensor], object], example: torch.Tensor) -> None:
    """Send the function through aot, forward and (for floating point) backward, and lower what comes out."""

    def lower(gm: fx.GraphModule, inputs: object, role: str) -> Callable[..., object]:
        graph.lower_graph(gm, replace(CPU, scans_rows=True))
        return lambda args: gm(*args)

    with torch.no_grad():
        through_aot(function, example, lower)
    if example.is_floating_point():
        compiled = through_aot(function, example.detach().requires_grad_(), lower)
        for backward in compiled.backward_passes:
            backward._compile((False,) * len(backward.whole.tangents()))


def test_every_rule_is_reached(reached: set[str]) -> None:
    for example, functions in PROGRAMS:
        for function in functions:
            drive(function, example)
    assert len(reached) > 150
    unreached = sorted((RULES.keys() | VIEWS.keys()) - reached)
    assert not unreached


class Declining(dict[str, Rule]):
    """A rule table whose rules decline every other node that they meet, after they made their definitions."""

    def __init__(self, rules: dict[str, Rule], first: bool) -> None:
        super().__init__(rules)
        self.declines = first
        self.declined: list[str] = []

    def get(self, key: str, default: Any = None) -> Any:
        rule = super().get(key, default)
        self.declines = not self.declines
        if rule is None or self.declines:
            return rule

        def declining(*args: Any, **kwargs: Any) -> Any:
            rule(*args, **kwargs)
            self.declined.append(key)
            raise Decline("to see what comes of it")

        return declining


@pytest.mark.sampled(2)
@pytest.mark.parametrize("first", [False, True])
def test_a_rule_that_declines_costs_its_own_node(first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever node a rule declines, the rest of the graph is compiled, and the results are the same."""
    tables = [Declining(dict(RULES), first), Declining(dict(VIEWS), not first)]
    monkeypatch.setattr(graph, "RULES", tables[0])
    monkeypatch.setattr(graph, "VIEWS", tables[1])
    kernels = 0

    def compiler(gm: fx.GraphModule, inputs: Sequence[torch.Tensor], role: Role) -> BoxedFn:
        nonlocal kernels
        before = sum(len(table.declined) for table in tables)
        low = graph.lower_graph(gm, CPU)
        observed = sum(why == "to see what comes of it" for why in low.notes.values())
        assert observed == sum(len(table.declined) for table in tables) - before
        kernels += len(low.program.defs)
        return find_backend("cpu").compile(gm, inputs, role)

    for example, functions in PROGRAMS:
        for function in functions:
            with torch.no_grad():
                found = through_aot(function, example, compiler)(example)
            torch.testing.assert_close(found, results(function(example)), equal_nan=True)
    assert len({name for table in tables for name in table.declined}) > 80 and kernels > 80
