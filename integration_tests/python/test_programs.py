"""Every small program under `compile()` and under eager, on each of its calls, warm and cold, with both backends.

The programs made by rule (families) run in long runs only, `FRAMESMITH_LONG=1`: they take a quarter of an hour and
more. Of the others a third is compiled again for each call, too, and a quarter runs with the eager backend.
"""

import pytest

from integration_tests.harness.differential import check
from integration_tests.harness.sweeps import LONG, a_part
from integration_tests.programs import IN_FAMILIES, PROGRAMS, WARM_ONLY

SINGLE = [name for name in PROGRAMS if name not in IN_FAMILIES]
SHOWN = list(PROGRAMS) if LONG else SINGLE


def test_there_are_enough_programs() -> None:
    assert len(PROGRAMS) >= 1000 and len(SINGLE) >= 40


@pytest.mark.sampled(28)
@pytest.mark.parametrize("name", SHOWN)
def test_equals_eager(name: str) -> None:
    counters = check(PROGRAMS[name], repeat=True)
    assert counters["frames_failed"] == 0, counters


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", a_part([name for name in SHOWN if name not in WARM_ONLY], 3))
def test_equals_eager_when_each_call_is_compiled_again(name: str) -> None:
    counters = check(PROGRAMS[name], cold=True, backend="eager")
    assert counters["frames_failed"] == 0, counters


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", a_part(SINGLE, 4))
def test_equals_eager_with_the_eager_backend(name: str) -> None:
    check(PROGRAMS[name], backend="eager")
