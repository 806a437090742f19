"""Cycles: found exactly, broken at containers, everything made after its parts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sideeffects_fakes import Constant, Container, Tuple, new

from framesmith_sideeffects import Journal
from framesmith_sideeffects.liveness import cyclic_components, parts, plan_creation


@st.composite
def graphs(draw: st.DrawFn) -> list[Any]:
    """Lists and tuples that contain each other; tuples only refer to earlier values."""
    journal = Journal()
    size = draw(st.integers(1, 8))
    values: list[Any] = []
    for index in range(size):
        if index and draw(st.booleans()):
            values.append(Tuple([values[draw(st.integers(0, index - 1))] for _ in range(draw(st.integers(0, 3)))]))
        else:
            values.append(new(journal, list))
    for value in values:
        if isinstance(value, Container):
            value.items = [values[draw(st.integers(0, size - 1))] for _ in range(draw(st.integers(0, 3)))]
    return values


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_each_value_is_made_after_its_parts(values: list[Any]) -> None:
    plan = plan_creation(values)
    made: set[int] = set()
    for value in plan.order:
        if id(value) not in plan.made_empty:
            assert all(id(part) in made for part in parts(value))
        made.add(id(value))
    assert {id(value) for value in values} <= made


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_only_containers_in_cycles_are_made_empty(values: list[Any]) -> None:
    def reaches_itself(value: Any) -> bool:
        seen: set[int] = set()
        pending = list(parts(value))
        while pending:
            found = pending.pop()
            if found is value:
                return True
            if id(found) not in seen:
                seen.add(id(found))
                pending.extend(parts(found))
        return False

    made_empty = plan_creation(values).made_empty
    assert made_empty == {id(value) for value in values if isinstance(value, Container) and reaches_itself(value)}


def test_a_cycle_without_a_container_is_an_error() -> None:
    pair = Tuple([Constant(1)])
    pair.items.append(pair)
    with pytest.raises(NotImplementedError, match="without a mutable container"):
        plan_creation([pair])
    assert cyclic_components([pair], parts) == [[pair]]
