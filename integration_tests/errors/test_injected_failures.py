"""Any function of the compiler raises at any of its calls: programs do what they do in eager mode, each effect once.

By default one warning reports it, under `strict` an error; an interrupt goes to the caller. Nothing is left behind.
The programs and functions are drawn by number; long runs (`FRAMESMITH_LONG=1`) take every program.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import framesmith
import framesmith_frames
from framesmith_guards import CompileContext, current_location
from integration_tests.harness.differential import Run, assert_same_outcomes, eager, run
from integration_tests.harness.injection import Place, Planted, calls_in, planted
from integration_tests.harness.sweeps import LONG
from integration_tests.programs import IN_FAMILIES, PROGRAMS

#: Records warnings and looks at them: the one that reports the failure is among them.
RECORDS_WARNINGS = "language.warnings_and_print"
NAMES = [name for name in PROGRAMS if name not in IN_FAMILIES and name != RECORDS_WARNINGS]
SHOWN = NAMES if LONG else random.Random(0).sample(NAMES, 16)
ERRORS = (Planted, MemoryError)


def drawn(name: str, calls: dict[Any, int]) -> Place:
    """A function of those called, each as likely as the others, and one of its calls."""
    chance = random.Random(name)
    function = chance.choice(sorted(calls))
    return Place(function, chance.choice([1, chance.randint(1, calls[function])]))


def left_behind() -> dict[str, object]:
    """The state that a compilation creates and removes again."""
    return {
        "callback": framesmith_frames.get_callback(),
        "threads": framesmith_frames.hook_state()["active_threads"],
        "compilation": CompileContext.try_get(),
        "location": current_location(),
        "dispatch modes": _get_current_dispatch_mode_stack(),
        "function modes": _get_current_function_mode_stack(),
        "grad": torch.is_grad_enabled(),
    }


def check_as_new(name: str, expected: Run) -> None:
    """Nothing is left behind, and the program compiles."""
    actual = run(PROGRAMS[name], framesmith.compile)
    assert_same_outcomes(expected, actual, "afterwards, ")
    assert actual.statistics["frames_failed"] == 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SHOWN)
def test_one_warning_and_the_effects_of_eager(name: str) -> None:
    expected = run(PROGRAMS[name], eager)
    place = drawn(name, calls_in(lambda: run(PROGRAMS[name], framesmith.compile)))
    before = left_behind()
    error = random.Random(name).choice(ERRORS)
    with planted(place, error) as plant, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        actual = run(PROGRAMS[name], framesmith.compile)
    assert_same_outcomes(expected, actual, f"{place}: ")
    reported = [str(one.message) for one in caught if issubclass(one.category, framesmith.FramesmithWarning)]
    reported = [message for message in reported if "framesmith failed to compile" in message]
    assert len(reported) == plant.raised, (place, reported)
    assert left_behind() == before, place
    check_as_new(name, expected)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize("error", [Planted, KeyboardInterrupt])
def test_an_error_in_place_of_the_call(name: str, error: type[BaseException]) -> None:
    """While the first frame is compiled nothing has run: the call made again does what it does in eager mode."""
    meant = KeyboardInterrupt if error is KeyboardInterrupt else framesmith.FramesmithError
    seen: list[str] = []

    def compiler(fn: Callable[..., Any]) -> Callable[..., Any]:
        compiled = framesmith.compile(fn, strict=error is Planted, recompile_limit=100)

        def called(*args: Any, **kwargs: Any) -> Any:
            before = left_behind()
            try:
                return compiled(*args, **kwargs)
            except meant as raised:
                seen.append(str(raised))
            assert left_behind() == before
            return compiled(*args, **kwargs)

        return called

    expected = run(PROGRAMS[name], eager)
    place = drawn(name, calls_in(lambda: run(PROGRAMS[name], framesmith.compile), last=1))
    with planted(place, error, last=1) as plant:
        actual = run(PROGRAMS[name], compiler)
    assert_same_outcomes(expected, actual, f"{place}: ")
    assert len(seen) == plant.raised, (place, seen)
