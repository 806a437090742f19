"""Kernels of groups that differ in names alone: what they share, and that they are what each would be by itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from case_selection.sweeps import examples
from graphs.tracing import trace
from sample_programs.row_column import CASES

from framesmith_backends.ir.canonical import kernel_form
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.render.llvm.loops.kernel import render_kernel
from framesmith_backends.schedule import plan as planning
from framesmith_backends.schedule.fusion.equal_groups import SharedKernels
from framesmith_backends.schedule.plan import Plan, make_plan
from framesmith_backends.target import CPU, GPU, Processor, Target

Tensor = torch.Tensor
AVX2 = Processor("x86-64-v3", "", 32, False)


def layers(x: Tensor, *weights: Tensor) -> Tensor:
    """A residual layer for each weight: a norm with its own scale, matmuls, an activation, all of one structure."""
    for w in weights:
        y = F.layer_norm(x, x.shape[-1:], w[0], w[1]) @ w
        x = x + (F.gelu(y).softmax(-1) @ w).cumsum(0).tanh()
    return x


def unlike(x: Tensor, *weights: Tensor) -> list[Tensor]:
    """Kernels that differ in little: order, layout, what is the same buffer, constants, what is stored."""
    a, b = weights[:2]
    results = [(a - b).sin(), (b - a).sin(), (a - a).sin(), (a - b.t()).sin(), (a.t() - b).sin(), (a - b).sin() + 1.0]
    results += [(a * 2.0).exp(), (b * 3.0).exp(), a.sum(0), b.sum(1), a.softmax(0), b.softmax(1)]
    kept = (a * b).tanh()
    return [
        *results,
        kept,
        kept.sum(-1),
        (b * a).tanh().sum(-1),
        a.half().float(),
        torch.cat([a, b]),
        torch.cat([b, a]),
    ]


def strided(x: Tensor) -> Tensor:
    return F.pad(x[:, 1:], (1, 0))


#: Functions of tensors of 16 x 16, which differ in values, layout, reductions, indices, types.
STEPS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda x, y: x.sin(),
    lambda x, y: x * -0.0,
    lambda x, y: x * 0.0,
    lambda x, y: x.half().float(),
    lambda x, y: x.t(),
    lambda x, y: x.flip(0),
    lambda x, y: x.softmax(0),
    lambda x, y: x.softmax(1),
    lambda x, y: x.cumsum(1),
    lambda x, y: x - x.sum(0),
    lambda x, y: x.roll(1, 0),
    lambda x, y: strided(x),
    lambda x, y: x.clone().copy_(y.exp()),
    lambda x, y: x[torch.arange(16)],
    lambda x, y: x.argmax(0).float() + y,
    lambda x, y: torch.where(x > y, x, y),
    lambda x, y: torch.cat([x[:8], y[8:]]),
    lambda x, y: (x * y).sum(1, keepdim=True) + y,
    lambda x, y: x @ y,
    lambda x, y: x.scatter_add(0, torch.zeros_like(y).long(), y),
)


def repeated(seed: int) -> Callable[..., list[Tensor]]:
    """A few steps that are taken again and again on other tensors, now and then another one; some results are kept."""

    def program(*inputs: Tensor) -> list[Tensor]:
        drawn = random.Random(seed)
        values, kept = [*inputs], []
        motif = [(drawn.choice(STEPS), drawn.randrange(1, 5), drawn.randrange(1, 5)) for _ in range(4)]
        for _ in range(3):
            for step, a, b in motif:
                taken = drawn.choice(STEPS) if drawn.random() < 0.15 else step
                values.append(taken(values[-a], values[-b]))
                if drawn.random() < 0.3:
                    kept.append(values[-1])
        return [*kept, values[-1]]

    return program


def planned(function: Callable[..., object], sizes: tuple[int, int], target: Target) -> Plan:
    inputs = [torch.randn(*sizes), *(torch.randn(sizes[1], sizes[1]) for _ in range(4))]
    return make_plan(
        lower_graph(trace(function, inputs), CPU).program, replace(target, scratch=True, index_splitting=True)
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("function", [layers, unlike, *(case.function for case in CASES if case.bias)])
def test_kernels_are_what_each_is_when_built_by_itself(
    function: Callable[..., object], target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan() -> Plan:
        if function in (layers, unlike):
            return planned(function, (16, 16), target)
        case = next(case for case in CASES if case.function is function)
        return make_plan(
            lower_graph(trace(function, case.inputs(2048, 64)), CPU).program,
            replace(target, scratch=True, index_splitting=True),
        )

    shared = plan()
    monkeypatch.setattr(SharedKernels, "kernels", lambda self, name, group: self.build(name, group))
    alone = plan()
    assert [kernel.text() for kernel in shared.kernels] == [kernel.text() for kernel in alone.kernels]
    assert [kernel.params for kernel in shared.kernels] == [kernel.params for kernel in alone.kernels]
    assert shared.text() == alone.text()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(examples(90)))
def test_drawn_programs_have_the_kernels_that_each_would_have_by_itself(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    inputs = [
        torch.randn(16, 16),
        torch.randn(16, 16).t(),
        torch.randn(32, 16)[::2],
        torch.randn(16, 1).expand(16, 16),
    ]
    program = lower_graph(trace(repeated(seed), inputs), CPU).program
    shared = make_plan(program, CPU)
    texts: dict[object, str] = {}
    for kernel in shared.kernels:
        if (form := kernel_form(kernel)) is not None:
            text, _, _ = render_kernel(kernel, "KERNEL", AVX2)
            assert texts.setdefault(form, text) == text
    monkeypatch.setattr(SharedKernels, "kernels", lambda self, name, group: self.build(name, group))
    alone = make_plan(lower_graph(trace(repeated(seed), inputs), CPU).program, CPU)
    assert shared.text() == alone.text()
    assert [kernel.text() for kernel in shared.kernels] == [kernel.text() for kernel in alone.kernels]


def test_equal_layers_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    real = planning.build_kernel

    def counted(name: str, *args: object, **settings: object) -> object:
        built.append(name)
        return real(name, *args, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(planning, "build_kernel", counted)
    plan = planned(layers, (16, 16), CPU)
    assert len(plan.kernels) >= 8
    assert len(built) <= len(plan.kernels) // 2, built


@pytest.mark.parametrize("function", [layers, unlike])
def test_kernels_of_one_form_have_one_text(function: Callable[..., object]) -> None:
    texts: dict[object, str] = {}
    for kernel in planned(function, (16, 16), CPU).kernels:
        form = kernel_form(kernel)
        assert form is not None
        text, _, _ = render_kernel(kernel, "KERNEL", AVX2)
        assert texts.setdefault(form, text) == text
    assert len(texts) == len(set(texts.values()))


def test_names_within_indirect_indices_are_part_of_the_kernel() -> None:
    inputs = [torch.randn(8, 8), torch.randint(0, 8, (4,))]
    plan = make_plan(lower_graph(trace(lambda x, at: (x[at].sin(), x[at + 1].sin()), inputs), CPU).program, CPU)
    assert plan.kernels
    assert all((kernel_form(kernel) is None) != bool(kernel.checks) for kernel in plan.kernels)
    assert not all(kernel.checks for kernel in plan.kernels)
