"""Every small program, under `compile()` and under eager, on each of its calls; and under the eager backend."""

import pytest

from integration_tests.differential import check
from integration_tests.programs import PROGRAMS


def test_there_are_enough_programs() -> None:
    assert len(PROGRAMS) >= 40


@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_eager(name: str) -> None:
    counters = check(PROGRAMS[name])
    assert counters["frames_failed"] == 0, counters


@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_eager_with_the_eager_backend(name: str) -> None:
    check(PROGRAMS[name], backend="eager")
