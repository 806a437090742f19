"""Lifetimes: tracing and calls leave nothing behind once compiled code is forgotten or its results are gone."""

from __future__ import annotations

import contextlib
import gc
import linecache
import types
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import framesmith
from integration_tests.harness.differential import run
from integration_tests.programs import make_afresh
from integration_tests.programs.interactions import containers, control, models, settings, tensors


def fake_modes() -> int:
    gc.collect()
    return sum(isinstance(one, FakeTensorMode) for one in gc.get_objects())


def texts() -> int:
    return sum("framesmith_aot" in name for name in linecache.cache)


@pytest.mark.filterwarnings("ignore")  # of objects whose class is asked for
def test_a_trace_of_a_training_graph_is_freed() -> None:
    framesmith.reset()
    before, lines = fake_modes(), texts()
    for factor in range(3):
        run = framesmith.compile(lambda x, factor=factor: (x.sin() * factor, x.exp().sum()))
        x = torch.ones(3, requires_grad=True)
        sum(out.sum() for out in run(x)).backward()
    del run, x
    framesmith.reset()
    assert fake_modes() <= before and texts() <= lines


def with_dead_code(x: torch.Tensor) -> torch.Tensor:
    x.exp().t()
    return x.sin()


HELD = {
    "dead code": with_dead_code,
    "vmap": torch.vmap(lambda a: a.sin().sum()),
    "vmap in vmap": torch.vmap(torch.vmap(lambda a: a.sin() * 2)),
    "grad": torch.func.grad(lambda a: a.sin().sum()),
    "grad in vmap": lambda x: torch.vmap(lambda a: torch.func.grad(lambda b: (b * b).sum())(a))(x) + 1,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", HELD)
def test_no_fakes_stay_with_what_is_compiled(name: str) -> None:
    def fakes() -> int:
        gc.collect()
        return sum(type(one) is FakeTensor for one in gc.get_objects())

    framesmith.reset()
    before = fakes()
    run = framesmith.compile(HELD[name])
    run(torch.ones(3, 4))
    assert framesmith.stats()["breaks"] == 0 < framesmith.stats()["graphs"]
    assert fakes() <= before


def test_an_input_that_is_changed_from_its_results_is_freed() -> None:
    run = framesmith.compile(lambda state, w: state + w.sin())
    w = torch.ones(3, requires_grad=True)
    seen = []
    for _ in range(3):
        state = torch.zeros(3)
        state.add_(run(state, w))
        seen.append(weakref.ref(state))
        del state
    gc.collect()
    assert not any(one() is not None for one in seen)


#: Programs in which a trace raises, restarts, breaks, or meets an operation that fakes refuse.
ENDINGS = {
    "a_full_log_restarts": containers,
    "a_set_that_remembers_its_last": containers,
    "a_heap_of_losses": containers,
    "an_error_in_the_middle_of_an_update": containers,
    "a_block_that_returns_and_swallows": control,
    "finally_that_breaks": control,
    "results_decide_which_hook_runs": control,
    "attributes_watched_by_the_class": models,
    "modes_left_by_errors": tensors,
    "a_mode_held_by_a_generator": tensors,
    "a_sort_key_that_computes_late": settings,
}


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.sampled(20)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ENDINGS)
def test_no_frame_of_the_compiler_is_left(name: str) -> None:
    """One left in a circle holds the frames that called it, and what the user's functions held: closed late."""
    for _ in range(2):  # what the first imports is not looked at
        framesmith.reset()
        with no_collections():
            run(lambda: make_afresh(ENDINGS[name].__name__, name), lambda fn: framesmith.compile(fn, backend="eager"))
            frames = [one for one in gc.get_objects() if isinstance(one, types.FrameType)]
            left = [one.f_code.co_qualname for one in frames if "framesmith_" in one.f_code.co_filename]
            del frames
    assert not left


def test_what_a_raising_function_held_is_closed_at_once() -> None:
    closed = []

    def numbers():
        try:
            yield from range(4)
        finally:
            closed.append(True)

    def held(empty):
        generator = numbers()
        next(generator)
        try:
            generator.throw(KeyError(max([1, 2], key=lambda _: empty[0])))
        except KeyError:
            pass

    def after_a_break(x, flow, empty):
        y = x + 1
        next(flow)
        held(empty)
        return y

    flow = zip(range(9), range(9), strict=True)
    compiled = framesmith.compile(after_a_break)
    for count in range(1, 4):
        with no_collections():
            with pytest.raises(IndexError):
                compiled(torch.ones(2), flow, [])
            assert len(closed) == count
