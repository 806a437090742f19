"""Programs in which features meet: equal to eager under every way of compiling them, whatever fails inside.

Each program is compiled in one of the ways, a quarter meets a failure, and a quarter logs; in long runs,
`FRAMESMITH_LONG=1`, all.
"""

from __future__ import annotations

import functools
import logging
import random
import re
import threading
import warnings
from collections.abc import Callable, Iterator

import pytest

import framesmith
from integration_tests.harness.differential import Case, Run, assert_same_outcomes, check, check_strictly, eager, run
from integration_tests.harness.injection import Place, Planted, calls_in, planted
from integration_tests.harness.sweeps import LONG, a_part
from integration_tests.programs import make_afresh, programs_of
from integration_tests.programs.interactions import containers, control, models, registered, settings, tensors

pytest.importorskip("pandas")
pytest.importorskip("yaml")
pytest.importorskip("scipy")
pytest.importorskip("matplotlib")

PROGRAMS: dict[str, Callable[[], Case]] = {
    name: functools.partial(make_afresh, group.__name__, name)
    for group in (containers, control, models, settings, tensors)
    for name in programs_of(group)
}
#: name of a way -> how the program is compiled
WAYS: dict[str, Callable[[Callable[[], Case]], object]] = {
    "graphs as they are": check_strictly,
    "nothing compiled before": functools.partial(check_strictly, cold=True),
    "kernels": functools.partial(check_strictly, backend="auto"),
    "one entry a function": functools.partial(check, backend="eager", recompile_limit=1),
}
#: Records warnings and looks at them: those that report a failure or a limit are among them.
RECORDS_WARNINGS = "warnings_name_their_line"


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    framesmith.set_logs()
    framesmith.reset()


def test_there_are_enough_programs() -> None:
    assert len(PROGRAMS) >= 80


#: Predicates of guards, called at each call, by the C check as well.
PREDICATES = "framesmith_guards.kinds.predicates"
#: Called when an object dies: Python reports what these raise by itself.
FINALIZERS = (("framesmith_aten.graphs.modules", "_forget_text"),)
CASES = [(name, way) for at, name in enumerate(PROGRAMS) for k, way in enumerate(WAYS) if LONG or (at + k) % 4 == 0]


@pytest.mark.sampled(10)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "way"), CASES)
def test_equal_to_eager(name: str, way: str) -> None:
    WAYS[way](PROGRAMS[name])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("operation", registered.OPERATIONS, ids=lambda operation: operation.__name__)
def test_what_breaks_by_a_registered_kind(operation: Callable[..., object]) -> None:
    names = [name for name in registered.CASES if name.startswith(f"{operation.__name__}__")]
    for name in a_part(names, 3):  # of the four kinds of weights each comes
        check_strictly(registered.CASES[name])
    check_strictly(registered.CASES[names[-1]], backend="auto")


@pytest.mark.sampled(12)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", a_part(PROGRAMS, 4))
def test_a_failure_inside(name: str) -> None:
    """One place in the compiler raises, drawn by the program's name: each effect happens once nevertheless."""
    chance = random.Random(name)
    expected = run(PROGRAMS[name], eager)
    calls = calls_in(lambda: run(PROGRAMS[name], framesmith.compile))
    function = chance.choice(sorted(calls))
    place = Place(function, chance.choice([1, chance.randint(1, calls[function])]))
    with planted(place, chance.choice([Planted, MemoryError])) as plant, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        actual = run(PROGRAMS[name], framesmith.compile)
    if name != RECORDS_WARNINGS:
        assert_same_outcomes(expected, actual, f"{place}: ")
    reported = [str(one.message) for one in caught if issubclass(one.category, framesmith.FramesmithWarning)]
    reported = [message for message in reported if "framesmith failed to compile" in message]
    if function[0] == PREDICATES or function[:2] in FINALIZERS:
        assert len(reported) <= plant.raised, (place, reported)  # a guard that cannot be checked does not hold
    else:
        assert name == RECORDS_WARNINGS or len(reported) == plant.raised, (place, reported)


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", a_part([*PROGRAMS][1:], 4))
def test_logs_change_nothing_and_name_the_program(name: str) -> None:
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            record.getMessage()
            records.append(record)

    handler = Keep()
    framesmith.set_logs("+all")
    logging.getLogger("framesmith").handlers[:] = [handler]
    try:
        check(PROGRAMS[name], backend="auto")
    finally:
        logging.getLogger("framesmith").removeHandler(handler)
    without = [record for record in records if not re.fullmatch(r"\d+/\d+(_\d+)?", str(vars(record)["compile_id"]))]
    assert records and not without, [(record.name, record.getMessage()) for record in without]
    positions = {(record.name, vars(record)["place"]) for record in records}
    assert not [place for place in positions if re.search("/framesmith_?[a-z]*/|^-$", place[1])], positions


@pytest.mark.sampled(12)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("names", [sorted(PROGRAMS)[at::20] for at in range(20)], ids=lambda names: names[0])
def test_in_threads_of_their_own(names: list[str]) -> None:
    """A compiled function is called by one thread after the other; they see what the main thread sees."""

    def in_a_thread(fn: Callable[..., object]) -> Callable[..., object]:
        compiled = framesmith.compile(fn, backend="eager")

        def called(*args: object, **kwargs: object) -> object:
            given: list[object] = []
            errors: list[BaseException] = []

            def work() -> None:
                try:
                    given.append(compiled(*args, **kwargs))
                except BaseException as error:
                    errors.append(error)

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            if errors:
                raise errors[0]
            return given[0]

        return called

    def eagerly(fn: Callable[..., object]) -> Callable[..., object]:
        return fn

    for name in names:
        if name in THREADS_DIFFER:
            continue
        expected: Run = run(PROGRAMS[name], eagerly)
        assert_same_outcomes(expected, run(PROGRAMS[name], in_a_thread), f"{name}: ")


#: These set state of a thread.
THREADS_DIFFER = {"thread_locals_and_locks"}
