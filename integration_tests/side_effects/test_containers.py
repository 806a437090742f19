"""Containers changed before, inside and after graphs: results, contents, order, identities and errors as in eager.

A third of the operations runs around breaks, too; in long runs, `FRAMESMITH_LONG=1`, all.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable

import pytest

from integration_tests.harness.differential import Case, check_strictly
from integration_tests.harness.sweeps import a_part
from integration_tests.programs import make_afresh, programs_of
from integration_tests.programs.side_effects import container_breaks, container_owners
from integration_tests.programs.side_effects.containers import BUFFERS, HOLDERS
from integration_tests.programs.side_effects.operations import around_breaks, around_one_graph, case_of, new_one

PAIRS = [(name, operation) for name, holder in HOLDERS.items() for operation in holder.operations]
WRITTEN = [(group, name) for group in (container_owners, container_breaks) for name in programs_of(group)]
#: Those of the written programs that break, by a call of `print` or because something is not traced.
BREAK = {
    "with_a_break_between", "with_a_graph_that_raises_behind_a_break", "with_data_that_decide", "buffers",
    "with_a_graph_that_raises_in_a_helper_behind_a_break", "with_a_graph_that_raises_in_a_loop",
    "views_read_after_changes", "changed_under_an_iterator",
}  # fmt: skip


def compiled(make: Callable[[], Case], *, cold: bool = False) -> dict[str, int]:
    """Compare with eager mode what is to compile."""
    counters = check_strictly(make, cold=cold)
    assert counters["frames_compiled"] > 0, counters
    return counters


def test_there_are_enough_programs() -> None:
    assert len(PAIRS) >= 140 and len(WRITTEN) >= 40


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("group", "name"), WRITTEN, ids=lambda part: part if isinstance(part, str) else "")
def test_a_written_program(group: types.ModuleType, name: str) -> None:
    make = functools.partial(make_afresh, group.__name__, name)
    counters = compiled(make)
    assert (counters["breaks"] > 0) is (name in BREAK), counters
    compiled(make, cold=True)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "operation"), PAIRS)
def test_an_operation_around_one_graph(name: str, operation: str) -> None:
    counters = compiled(functools.partial(case_of, HOLDERS[name], operation, around_one_graph))
    assert counters["graphs"] > 0
    assert (counters["breaks"] > 0) is (name in BUFFERS), counters


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "operation"), a_part(PAIRS, 3))
def test_an_operation_around_breaks(name: str, operation: str) -> None:
    assert compiled(functools.partial(case_of, HOLDERS[name], operation, around_breaks))["breaks"] > 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "operation"), [pair for pair in PAIRS if pair[0] not in BUFFERS])
def test_an_operation_on_a_new_one(name: str, operation: str) -> None:
    counters = compiled(functools.partial(new_one, HOLDERS[name], operation))
    assert counters["breaks"] == 0, counters
