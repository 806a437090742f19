"""Why entries miss: exactly the guards that do not hold, the nearest entry first."""

from dataclasses import dataclass
from types import FunctionType
from typing import Any

import pytest
import torch

from framesmith_guards import AttrSource, Guard, ItemSource, LocalSource, compile_guards, explain

X, Y, Z = (LocalSource(name) for name in "xyz")
ARGS = ("x", "y", "z")


def f(x, y=None, z=None):
    return x


@dataclass
class Frame:
    """A call as framesmith_frames reports it."""

    arguments: tuple[object, ...]
    function: FunctionType = f


@dataclass
class Entry:
    """Its entry for one."""

    check: Any


def entry(*guards):
    return Entry(compile_guards(guards, ARGS))


def constants(x, y, z):
    return entry(*(Guard(source, "EQUALS_MATCH", value) for source, value in zip((X, Y, Z), (x, y, z))))


def test_fewest_misses_come_first_with_every_reason():
    far, near, hit = constants(1, 2, 3), constants(0, 0, 3), constants(0, 0, 0)
    rows = explain([far, near, hit], Frame((0, 0, 0)))
    assert [row.entry for row in rows] == [hit, near, far]
    assert rows[0].reasons == () and str(rows[0]) == "it applies" and rows[0].held == 3
    assert rows[1].reasons == ("L['z']: expected 3, found 0",)
    assert str(rows[2]) == "; ".join(f"L['{n}']: expected {v}, found 0" for n, v in zip("xyz", (1, 2, 3)))


def test_of_equal_counts_the_latest_noticed_comes_first():
    early, late = constants(1, 0, 0), constants(0, 0, 1)
    assert [row.entry for row in explain([early, late], Frame((0, 0, 0)))] == [late, early]
    assert [row.held for row in explain([early, late], Frame((0, 0, 0)))] == [2, 0]


def test_what_a_miss_hides_counts_as_missed():
    inside = [Guard(ItemSource(X, key), "EQUALS_MATCH", key) for key in range(5)]
    hiding = entry(Guard(X, "TYPE_MATCH", list), *inside)
    near = entry(Guard(X, "TYPE_MATCH", tuple), Guard(Y, "NONE_MATCH"), Guard(Z, "NONE_MATCH"))
    rows = explain([hiding, near], Frame(((0, 1, 2, 3, 4), 1, 1)))
    assert [row.entry for row in rows] == [near, hiding]
    assert (len(rows[1].reasons), rows[1].hidden) == (1, 5)
    assert str(rows[1]).endswith(" (and 5 more behind)")


def test_every_reason_is_a_guard_that_misses_alone():
    guards = [
        Guard(X, "TENSOR_MATCH", torch.ones(2)),
        Guard(Y, "TYPE_MATCH", dict),
        Guard(Y, "DICT_KEYS", {"a": 1}),
        Guard(ItemSource(Y, "a"), "EQUALS_MATCH", 1),
        Guard(AttrSource(Z, "real"), "EQUALS_MATCH", 2),
        Guard(Z, "NOT_NONE"),
    ]
    args = (torch.ones(3), {"b": 1}, 2.5)
    [row] = explain([entry(*guards)], Frame(args))
    alone = [guard for guard in guards if not compile_guards([guard], ARGS)(args, f)]
    assert len(row.reasons) + row.hidden == len(alone)
    for reason in row.reasons:
        assert any(guard.explain(dict(zip(ARGS, args)), f) == reason for guard in alone)


def test_entries_that_died_and_checks_of_others():
    class Local:
        pass

    value = Local()
    dead = entry(Guard(X, "ID_MATCH", value), Guard(Y, "NONE_MATCH"))
    foreign, live = Entry(lambda args, function: False), constants(1, 1, 1)
    del value
    rows = explain([foreign, dead, live], Frame((0, 0, 0)))
    assert [row.entry for row in rows] == [dead, live, foreign]
    assert "Local object" in rows[0].reasons[0] and rows[0].reasons[0].endswith("is gone")
    assert rows[2].reasons == ("its check, a function, does not explain itself",)


def test_programs_explain_themselves_without_an_entry():
    programs = [constants(1, 1, 1).check, constants(0, 1, 0).check]
    rows = explain(programs, Frame((0, 0, 0)))
    assert [row.entry for row in rows] == programs[::-1]
    assert rows[0].reasons == ("L['y']: expected 1, found 0",)
    assert rows[0].guard is programs[1].guards[1] and explain(programs, Frame((0, 1, 0)))[0].guard is None


@pytest.mark.parametrize("value", [float("nan"), -0.0, [float("nan")], {1: (2.0, -0.0)}])
def test_values_with_odd_equality_explain_as_they_compare(value):
    [row] = explain([entry(Guard(X, "EQUALS_MATCH", value))], Frame((value, None, None)))
    assert row.reasons == ()
    [row] = explain([entry(Guard(X, "EQUALS_MATCH", value))], Frame((0.0, None, None)))
    assert row.reasons == (f"L['x']: expected {value!r}, found 0.0",)
