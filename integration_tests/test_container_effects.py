"""Containers changed before, inside and after graphs: results, contents, order, identities and errors as in eager."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable

import pytest
import torch

from integration_tests.differential import Case, check
from integration_tests.programs import make_afresh, programs_of
from integration_tests.programs.container_effects import interrupted, kept
from integration_tests.programs.container_effects.operations import BUFFERS, HOLDERS, Operation

PAIRS = [(name, operation) for name, holder in HOLDERS.items() for operation in holder.operations]
WRITTEN = [(group, name) for group in (kept, interrupted) for name in programs_of(group)]
#: Those of the written programs that break, by a call of `print` or because something is not traced.
BREAK = {
    "with_a_break_between", "with_a_graph_that_raises_behind_a_break", "with_data_that_decide", "buffers",
    "with_a_graph_that_raises_in_a_helper_behind_a_break", "with_a_graph_that_raises_in_a_loop",
    "views_read_after_changes", "changed_under_an_iterator",
}  # fmt: skip


def around_one_graph(op: Operation) -> Callable[..., object]:
    """Before and after the tensors' operations, by two names, in a block that fails."""

    def f(x, c, holder):
        first = op(c, x)
        y = x * 2
        try:
            second = op(holder["c"], y)
            raise KeyError("caught")
        except KeyError:
            y = y + 1
        return y, first, second, c is holder["c"]

    return f


def around_breaks(op: Operation) -> Callable[..., object]:
    """Before and behind a break, and before a graph that fails on some of the calls."""

    def f(x, c, holder):
        y = x * 2
        first = op(c, y)
        print("a break")
        second = op(holder["c"], y + 1)
        z = y[holder["index"]]
        third = op(c, z)
        return z, first, second, third

    return f


def on_a_new_one(make: Callable[[], object], op: Operation) -> Callable[..., object]:
    """On one that is made in the trace, twice."""

    def f(x):
        c = make()
        first = op(c, x)
        return c, x + 1, first, op(c, x * 2)

    return f


def case_of(name: str, operation: str, shape: Callable[[Operation], Callable[..., object]]) -> Case:
    """The program that does one operation; each of its calls goes on with the container of the last one."""
    holder = HOLDERS[name]
    c = holder.make()
    xs = [torch.arange(1.0, 4.0), torch.arange(2.0, 5.0), torch.arange(1.0, 5.0)]
    calls = [(x, c, {"c": c, "index": torch.tensor([n])}) for n, x in zip((0, 7, 1), xs, strict=True)]
    return Case(shape(holder.operations[operation]), calls, watch=[c])


def compiled(make: Callable[[], Case], *, cold: bool = False) -> dict[str, int]:
    """Compare with eager mode; failures of the compiler are errors."""
    counters = check(make, repeat=True, cold=cold, backend="eager", strict=True)
    assert counters["frames_failed"] == 0 and counters["frames_compiled"] > 0, counters
    return counters


def test_there_are_enough_programs() -> None:
    assert len(PAIRS) >= 140 and len(WRITTEN) >= 40


@pytest.mark.parametrize(("group", "name"), WRITTEN, ids=lambda part: part if isinstance(part, str) else "")
def test_a_written_program(group: types.ModuleType, name: str) -> None:
    make = functools.partial(make_afresh, group.__name__, name)
    counters = compiled(make)
    assert (counters["breaks"] > 0) is (name in BREAK), counters
    compiled(make, cold=True)


@pytest.mark.parametrize(("name", "operation"), PAIRS)
def test_an_operation_around_one_graph(name: str, operation: str) -> None:
    counters = compiled(functools.partial(case_of, name, operation, around_one_graph))
    assert counters["graphs"] > 0
    assert (counters["breaks"] > 0) is (name in BUFFERS), counters


@pytest.mark.parametrize(("name", "operation"), PAIRS)
def test_an_operation_around_breaks(name: str, operation: str) -> None:
    assert compiled(functools.partial(case_of, name, operation, around_breaks))["breaks"] > 0


@pytest.mark.parametrize(("name", "operation"), [pair for pair in PAIRS if pair[0] not in BUFFERS])
def test_an_operation_on_a_new_one(name: str, operation: str) -> None:
    holder = HOLDERS[name]
    f = on_a_new_one(holder.make, holder.operations[operation])
    counters = compiled(lambda: Case(f, [(torch.ones(2),), (torch.ones(3),)]))
    assert counters["breaks"] == 0, counters
