"""Draws of many numbers of the CPU's generator: numbers and state are those of ATen, which draws one by one."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from framesmith_backends.native_ops.random_numbers import operator as random_numbers
from framesmith_backends.native_ops.random_numbers.operator import (
    DRAWN_MASK,
    DRAWN_UNIFORM,
    FEWEST,
    fill_mask,
    fill_uniform,
    matches_aten,
)

BLOCK = 312  # elements of two words that one renewal of the generator gives
COUNTS = st.one_of(st.integers(1, 40), st.integers(BLOCK - 3, 2 * BLOCK + 3), st.sampled_from([5000, 20_011]))


def state_after(seed: int, words: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    torch.empty(words).uniform_(generator=generator)
    return generator.get_state()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**40), st.one_of(st.integers(0, 5), st.integers(620, 1250)), COUNTS, st.data())
def test_numbers_and_state(seed: int, words: int, count: int, data: st.DataObject) -> None:
    """A mask follows from ATen's own doubles, on every processor."""
    p = data.draw(st.one_of(st.floats(0.0, 1.0), st.sampled_from([0.0, 1.0, 0.1, 5e-324, 1 - 2**-53])))
    state = state_after(seed, words)
    generator = torch.Generator()
    generator.set_state(state)
    doubles = torch.empty(count, dtype=torch.float64).uniform_(generator=generator)
    floats = torch.empty(count).uniform_(generator=generator)
    frames: list[Any] = [torch.full((count + 32,), 7, dtype=dtype) for dtype in (torch.uint8, torch.float32)]
    mask, uniform = (frame[16 : count + 16] for frame in frames)
    fill_mask(state, mask, p)
    fill_uniform(state, uniform)
    assert torch.equal(mask.bool(), doubles < p)
    assert torch.equal(uniform, floats)
    assert torch.equal(state, generator.get_state())
    assert all((frame[:16] == 7).all() and (frame[count + 16 :] == 7).all() for frame in frames)


def test_whether_they_matches_aten_is_what_drawing_says() -> None:
    torch.manual_seed(3)
    drawn = torch.empty(4000).bernoulli_(0.2)
    torch.manual_seed(3)
    doubles = torch.empty(4000, dtype=torch.float64).uniform_()
    assert matches_aten() == torch.equal(drawn != 0, doubles < 0.2)


@pytest.mark.parametrize("shape", [(), (3,), (FEWEST - 1,), (FEWEST,), (7, 31, 41), (0, 5)])
def test_operators(shape: tuple[int, ...]) -> None:
    if not matches_aten():
        pytest.skip("ATen draws zeros and ones by a library on this processor")
    found = []
    for ours in (False, True):
        torch.manual_seed(11)
        mask = DRAWN_MASK(torch.empty(shape), 0.3) if ours else torch.empty(shape).bernoulli_(0.3).bool()
        uniform = DRAWN_UNIFORM(list(shape)) if ours else torch.rand(shape)
        found.append((mask, uniform, torch.get_rng_state()))
    assert all(map(torch.equal, *found))
    with pytest.raises(RuntimeError, match="bernoulli_ expects p to be in"):
        DRAWN_MASK(torch.empty(FEWEST), 1.5)


def test_threads_draw_different_numbers() -> None:
    count, calls = 4096, 40
    torch.manual_seed(5)
    wanted = {DRAWN_MASK(torch.empty(count), 0.5).numpy().tobytes() for _ in range(calls)}
    state = torch.get_rng_state()
    torch.manual_seed(5)
    with ThreadPoolExecutor(4) as pool:
        found = {*pool.map(lambda _: DRAWN_MASK(torch.empty(count), 0.5).numpy().tobytes(), range(calls))}
    assert found == wanted and len(found) == calls
    assert torch.equal(torch.get_rng_state(), state)


def test_numbers_that_another_thread_draws_are_not_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    count, meanwhile = 4096, [torch.empty(0)]

    def interrupted(state: torch.Tensor, out: torch.Tensor) -> None:
        fill_uniform(state, out)
        if not meanwhile[0].numel():
            other = threading.Thread(target=lambda: meanwhile.__setitem__(0, torch.rand(count)))
            other.start()
            other.join()

    torch.manual_seed(6)
    first, second = torch.rand(count), torch.rand(count)
    torch.manual_seed(6)
    monkeypatch.setattr(random_numbers, "fill_uniform", interrupted)
    drawn = DRAWN_UNIFORM([count])
    assert torch.equal(meanwhile[0], first) and torch.equal(drawn, second)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_of_a_process_that_draws_may_draw() -> None:
    with random_numbers._drawing:
        child = os.fork()
        if not child:
            DRAWN_UNIFORM([FEWEST])
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
