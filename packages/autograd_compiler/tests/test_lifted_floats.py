"""Passes that differ in floats only: schedules of bounds, slopes and probabilities."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from harness import identity, same_gradients
from torch.nn.attention import SDPBackend, sdpa_kernel

from framesmith_autograd_compiler import capture, disabled, engine
from framesmith_autograd_compiler.segments import variants

LABELS = torch.tensor([0, 1, 2, 3])


def _attention(h, s):
    """In parts: a kernel takes the number as it is."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(h[None], h[None], h[None], scale=s)


#: Functions of a tensor and a number; how many graphs are compiled for six numbers.
SCHEDULES = {
    "label smoothing": (lambda h, s: F.cross_entropy(h, LABELS, label_smoothing=s), 2),
    "clamp": (lambda h, s: h.clamp(-s, s), 2),
    "slope": (F.leaky_relu, 2),
    "scale": (_attention, 2),
    "alpha": (lambda h, s: torch.add(h, h * 2, alpha=s), 2),
    "sum": (lambda h, s: h.square() * s, 1),  # the engine keeps a tensor
    "beta": (lambda h, s: F.smooth_l1_loss(h, h.detach() * 0, beta=s), 6),  # its derivative decides by it
}
NUMBERS = (0.1, 0.3, 0.25, 0.7, 0.5, 0.9)


def scheduled(function, numbers, counts=(4,)):
    def make():
        weight = torch.nn.Parameter(torch.randn(6, 6))
        left = list(enumerate(numbers))

        def step():
            weight.grad = None
            at, number = left.pop(0)
            function(torch.randn(counts[at % len(counts)], 6) @ weight, number).sum().backward()

        return [weight], step

    return make


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_one_program(name):
    function, compiled = SCHEDULES[name]
    seen = same_gradients(scheduled(function, NUMBERS), steps=6)
    assert [len(one.modules) for one in seen.programs] == [compiled]
    assert seen.programs[0].reasons == []


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "label smoothing"])
def test_a_schedule_and_dynamic_sizes(name):
    same_gradients(scheduled(SCHEDULES[name][0], NUMBERS * 3, counts=(4, 3, 7, 4, 4, 9, 2)), steps=18)


def test_a_schedule_of_exponents_is_one_program_where_no_derivative_decides_by_them():
    """Torch's formula decides by the exponent in some releases: then there is a graph for each."""
    seen = same_gradients(scheduled(lambda h, s: h.abs() ** s, NUMBERS), steps=6)
    assert [len(one.modules) for one in seen.programs] in ([2], [6])
    assert seen.programs[0].reasons == []


def test_a_number_that_is_decided_by_stays_bounded(monkeypatch):
    monkeypatch.setattr(variants, "MOST_STATIC", 3)
    numbers = [1 + at / 16 for at in range(20)]
    seen = same_gradients(scheduled(SCHEDULES["beta"][0], numbers), steps=20)
    assert [len(one.modules) for one in seen.programs] == [3 + variants.MOST_DYNAMIC]


def test_numbers_of_every_kind():
    numbers = [0.0, -0.0, float("inf"), 0.0, float("nan"), -0.0, 1.0, float("-inf"), 0.5, 5e-324, float("nan")]
    functions = [
        lambda h, s: torch.add(h, h.sin(), alpha=s).copysign(torch.tensor(1.0)),
        lambda h, s: h.clamp(max=s),
        lambda h, s: F.leaky_relu(h, s),
    ]

    for function in functions:

        def run(function=function):
            found = []
            for number in numbers:
                h = torch.tensor([-2.0, -0.0, 0.0, 0.75, 3.0], requires_grad=True)
                function(h, number).backward(torch.tensor([1.0, 2.0, -3.0, -0.0, 0.0]))
                found.append(h.grad)
            return torch.stack(found)

        with capture(identity) as seen:
            actual = run()
        expected = run()
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
        known = ~expected.isnan()
        assert torch.equal(actual.signbit()[known], expected.signbit()[known])
        assert len(seen.programs) == 1 and seen.fallbacks == []


def test_a_number_that_is_infinite_for_once():
    """The derivative of a norm decides by the exponent."""
    numbers = [2.0, float("inf"), 3.0, 0.0, float("inf"), 1.0, float("-inf")]
    seen = same_gradients(scheduled(lambda h, s: torch.linalg.vector_norm(h, s), numbers), steps=7)
    assert all(one.reasons == [] for one in seen.programs)


def test_passes_that_differ_in_more_are_others():
    weight = torch.nn.Parameter(torch.randn(4, 4))
    with capture(identity) as seen:
        for dim in (0, 1, 0, 1):
            for keep in (False, True):
                weight.grad = None
                (weight.softmax(dim) * weight.sum(dim, keepdim=keep)).sum().backward()
                with disabled():
                    (expected,) = torch.autograd.grad(
                        (weight.softmax(dim) * weight.sum(dim, keepdim=keep)).sum(), [weight]
                    )
                torch.testing.assert_close(weight.grad, expected)
    assert len(seen.programs) == 4


def test_kinds_of_passes_are_recorded_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(engine, "MOST_PROGRAMS", 3)
    weight = torch.nn.Parameter(torch.randn(12, 2))
    with capture(identity) as seen, pytest.warns(UserWarning, match="3 programs have been recorded already"):
        for parts in (1, 2, 3, 4, 6, 2, 12, 3):
            weight.grad = None
            torch.stack([part.sin().sum() for part in weight.split(12 // parts)]).square().sum().backward()
            with disabled():
                loss = torch.stack([part.sin().sum() for part in weight.split(12 // parts)]).square().sum()
                (expected,) = torch.autograd.grad(loss, [weight])
            torch.testing.assert_close(weight.grad, expected)
    assert len(seen.programs) == 3 and seen.runs == 5 and len(seen.fallbacks) == 3


def test_the_engine_keeps_few_passes(monkeypatch):
    monkeypatch.setattr(engine, "MOST_RECORDED", 4)
    numbers = [1 + at / 16 for at in range(20)]
    counts = []

    def noted(h, number):
        counts.append(engine.installed()._recorded)
        return F.leaky_relu(h, number)

    seen = same_gradients(scheduled(noted, numbers), steps=20)
    assert max(counts[20:]) == 4 and [len(one.modules) for one in seen.programs] == [2]
