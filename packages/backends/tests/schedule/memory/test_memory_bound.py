"""Long runs are cut where a whole one would be the peak of a launch list, and nowhere else."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from graphs.tracing import trace
from hypothesis import given, settings
from hypothesis import strategies as st

from framesmith_aten.meta import HELD
from framesmith_backends import CpuBackend
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.schedule.memory.memory_bound import TRIFLE, _parts, _peak
from framesmith_backends.schedule.memory.reuse import Life, bytes_alive
from framesmith_backends.schedule.plan import make_plan
from framesmith_backends.schedule.steps import Allocate, CallStep, Run
from framesmith_backends.target import CPU

Tensor = torch.Tensor


@st.composite
def lives(draw: st.DrawFn) -> list[Life]:
    found = []
    for _ in range(draw(st.integers(0, 24))):
        first = draw(st.integers(0, 30))
        found.append(Life(draw(st.integers(1, 40)), first, first + draw(st.integers(0, 30))))
    return found


@settings(max_examples=300, deadline=None)
@given(lives(), st.integers(0, 10), st.integers(11, 40), st.integers(0, 200))
def test_parts_are_the_run_and_keep_to_what_is_allowed(all_lives: list[Life], start: int, end: int, more: int) -> None:
    allowed = max(bytes_alive(all_lives, start, end)) + more
    parts = _parts(all_lives, start, end, allowed)
    assert [first for first, _ in parts] == [start, *(last for _, last in parts[:-1])] and parts[-1][1] == end
    for first, last in parts:
        alive = [sum(one.size for one in all_lives if one.first <= at <= one.last) for at in range(first, last)]
        assert bytes_alive(all_lives, first, last) == alive
        assert max(alive) <= _peak(all_lives, first, last) <= allowed
    if _peak(all_lives, start, end) <= allowed:
        assert len(parts) == 1


def pass_over(count: int, size: int = 256) -> tuple[Any, list[Tensor]]:
    """A function that frees one of its inputs and makes one of its results after another, as a backward pass does."""

    def function(grad: Tensor, *kept: Tensor) -> tuple[Tensor, ...]:
        made = []
        for one in kept:
            grad = (grad @ one).sigmoid()
            made.append(grad.t() @ one)
        return (*made, grad)

    return function, [torch.randn(size, size) for _ in range(count + 1)]


def runs(count: int, size: int, held: bool = False) -> list[Run]:
    function, inputs = pass_over(count, size)
    gm = trace(function, inputs)
    for node in gm.graph.find_nodes(op="placeholder") if held else ():
        HELD.set(node, True)
    return [step for step in make_plan(lower_graph(gm, CPU).program, CPU, native=True).steps if isinstance(step, Run)]


def test_small_runs_stay_whole() -> None:
    assert 16 * 16 * 64 * 4 < TRIFLE
    assert len(runs(16, 16)) == 1


def test_a_tenth_of_a_mebibyte_too_much_is_split() -> None:
    assert len(runs(12, 64)) > 1  # 192 KiB are saved, as much is made


def test_inputs_that_others_hold_free_nothing() -> None:
    assert len(runs(12, 64, held=True)) == 1 < len(runs(12, 64))


def test_results_written_over_what_they_read_are_not_there_twice() -> None:
    """Six matrices are there where one kernel reads three and writes three: three if each is written over another."""

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        found = x
        for _ in range(6):
            gate, value, grad = found @ w, found.t() @ w, found @ w.t()
            one, two, three = gate.sigmoid() * value, grad * value, grad * gate.sigmoid()
            found = one @ w + two @ w + three @ w
        return (found,)

    gm = trace(function, [torch.randn(256, 256), torch.randn(256, 256) / 16])
    steps = make_plan(lower_graph(gm, CPU).program, CPU, native=True).steps
    arenas = [step.layout.numel for step in steps if isinstance(step, Allocate) and step.name.endswith(".arena")]
    assert max(arenas) <= 5 * 256 * 256 * 4


def test_memory_of_a_long_run() -> None:
    count, size = 16, 256 * 256 * 4
    assert 2 <= len(runs(count, 256)) <= 3 * count // 2  # of three items for each
    function, inputs = pass_over(count)
    gm = trace(function, inputs)
    call = CpuBackend().compile(gm, inputs)
    wanted = function(*inputs)
    for found, other in zip(call([one.clone() for one in inputs]), wanted, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-3, atol=1e-3)
    del found, other, wanted
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call([one.clone() for one in inputs])  # which empties the list
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    alive = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        most = max(most, alive)
    assert most <= (count + 1 + 4) * size  # twice as much if all results were made before the first input is freed


@pytest.mark.parametrize("native", [False, True])
def test_each_buffer_is_made_once_and_before_it_is_used(native: bool) -> None:
    function, inputs = pass_over(16)
    plan = make_plan(lower_graph(trace(function, inputs), CPU).program, CPU, native=native)
    there = {*plan.inputs}
    for step in plan.steps:
        if isinstance(step, Allocate):
            assert step.name not in there
            there.add(step.name)
        elif isinstance(step, CallStep):
            there.add(step.call.name)
        elif isinstance(step, Run):
            assert {*step.buffers} <= there
