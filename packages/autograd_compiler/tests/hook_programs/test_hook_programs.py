"""Programs over the kinds of hooks, captured and not: equal results, and equal order of what user code sees."""

from __future__ import annotations

import warnings

import pytest
import torch
from harness import identity

from framesmith_autograd_compiler import capture, disabled
from hook_programs import PROGRAMS

#: Passes that the engine runs, by the reason.
FALLS_BACK = {
    "a_differentiable_pass": "create_graph",
    "sparse_gradients": "sparse",
}


def run(program):
    """Return what user code saw, the results, and the error of a program."""
    torch.manual_seed(0)
    log, error = [], None
    try:
        found = program(log)
    except Exception as raised:
        found, error = None, type(raised).__name__
    return log, found, error


def test_there_are_programs_of_each_kind():
    assert len(PROGRAMS) >= 80


@pytest.mark.filterwarnings("ignore:the backward pass is not captured")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(name):
    with disabled():
        log, expected, error = run(PROGRAMS[name])
    with capture(identity) as seen, warnings.catch_warnings():
        for _ in range(3):
            found_log, found, found_error = run(PROGRAMS[name])
            assert found_error == error
            assert found_log == log
            assert (found is None) == (expected is None)
            for one, two in zip(found or (), expected or (), strict=True):
                assert (one is None) == (two is None)
                if two is not None:
                    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
                    assert one.stride() == two.stride()
    assert bool(seen.fallbacks) == (name in FALLS_BACK), seen.fallbacks
