"""What tracing and calls leave behind: nothing, once what was compiled is forgotten or its results are gone."""

from __future__ import annotations

import gc
import linecache
import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import framesmith


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
