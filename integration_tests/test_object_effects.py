"""Effects that are not on containers, around graphs, breaks and errors: all that eager mode shows, in its order."""

from __future__ import annotations

import functools
import types

import pytest

from integration_tests.differential import check_strictly
from integration_tests.programs import make_afresh, programs_of
from integration_tests.programs.object_effects import generators, objects, tensors

GROUPS = (tensors, objects, generators)
PROGRAMS = [pytest.param(group, name, id=name) for group in GROUPS for name in programs_of(group)]


def test_there_are_enough_programs() -> None:
    assert len(PROGRAMS) >= 1000


@pytest.mark.parametrize(("group", "name"), PROGRAMS)
def test_a_program(group: types.ModuleType, name: str) -> None:
    check_strictly(functools.partial(make_afresh, group.__name__, name))
