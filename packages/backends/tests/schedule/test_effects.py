"""Calls with effects are launched as often as they stand in the graph, and in its order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from graphs.tracing import trace

from framesmith_backends import CpuBackend

SEEN: list[tuple[str, float]] = []


@pytest.fixture
def ops() -> Iterator[Any]:
    with torch.library._scoped_library("schedule_effects", "FRAGMENT") as made:
        made.define("note(Tensor x, str what) -> ()")
        made.define("twice(Tensor x, str what) -> Tensor")

        def note(x: torch.Tensor, what: str) -> None:
            SEEN.append((what, float(x.sum())))

        def twice(x: torch.Tensor, what: str) -> torch.Tensor:
            note(x, what)
            return x * 2

        made.impl("note", note, "CPU")
        made.impl("note", lambda x, what: None, "Meta")
        made.impl("twice", twice, "CPU")
        made.impl("twice", lambda x, what: torch.empty_like(x), "Meta")
        SEEN.clear()
        yield torch.ops.schedule_effects


def test_effects_keep_their_order_among_fused_kernels(ops: Any) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        late = (y * 3).exp()
        ops.note(late, "what is computed last")
        a = x.sin() + 1
        b = ops.twice(a, "middle")
        ops.note(y, "an input")
        ops.twice(a, "unused")
        ops.note(y, "an input")
        total = (b * late).sum()
        ops.note(total, "a sum")
        return total, a * 2

    inputs = [torch.randn(50), torch.randn(50)]
    wanted = function(*inputs)
    eager = list(SEEN)
    SEEN.clear()
    found = CpuBackend().compile(trace(function, inputs), inputs)(list(inputs))
    assert [what for what, _ in SEEN] == [what for what, _ in eager]
    for (_, one), (_, other) in zip(SEEN, eager):
        assert one == pytest.approx(other, rel=1e-4)
    for one, other in zip(found, wanted):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_random_numbers_and_checks_are_among_them(ops: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        first = torch.rand_like(x)
        torch._assert_async((x < 100).all())
        ops.note(first, "between")
        torch.rand_like(x)  # unused, but it advances the generator
        return first + torch.rand_like(x)

    x = torch.randn(20)
    call = CpuBackend().compile(trace(function, [x]), [x])
    torch.manual_seed(0)
    wanted = function(x)
    torch.manual_seed(0)
    (found,) = call([x])
    assert torch.equal(found, wanted)
    with pytest.raises(RuntimeError):
        call([x + 200])
    assert [what for what, _ in SEEN] == ["between"] * 2


def test_a_call_that_fails_is_made_though_what_uses_it_is_needed_by_nobody() -> None:
    """The sums cannot fail, since their indices are known; what they add may, on some data."""

    def function(x: torch.Tensor) -> torch.Tensor:
        counts = torch.histc(x, 4)
        counts.scatter_add(0, torch.zeros_like(counts, dtype=torch.int64), counts)
        return x * 2

    x = torch.randn(20)
    call = CpuBackend().compile(trace(function, [x]), [x])
    torch.testing.assert_close(call([x])[0], x * 2)
    with pytest.raises(RuntimeError, match="not finite"):
        call([x / 0])
