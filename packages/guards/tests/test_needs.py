"""Needs of torch: found in each spelling, missed with one line, replaced by what stands in."""

from __future__ import annotations

import pytest

from framesmith_guards import needs
from framesmith_guards.needs import MissingNeed, Needs, Operators, is_missing, need, of_torch
from framesmith_guards.torch_adapter import aten, unstable


@pytest.fixture
def lines(monkeypatch):
    """The log about torch; tables made in a test are forgotten after it."""
    before, found = list(needs.TABLES), []
    monkeypatch.setattr(needs.logger, "warning", lambda text, *args: found.append(text % args))
    yield found
    needs.TABLES[:] = before


def test_the_first_spelling_that_torch_has_counts(lines):
    row = need("torch._no_such", "nothing", "torch._neither", "torch.relu")
    table = Needs("tests", [row])
    import torch

    assert table.no_such is torch.relu and table.has("no_such") and lines == []


def test_what_no_release_has_is_logged_once_and_stood_in_for(lines):
    table = Needs("tests", [need("torch._no_such", "compiling is slower")])
    (line,) = lines
    assert "torch._no_such" in line and "compiling is slower" in line
    assert is_missing(table.no_such) and not table.has("no_such")
    with pytest.raises(MissingNeed, match="_no_such"):
        table.no_such(1)


def test_something_else_may_stand_in(lines):
    table = Needs("tests", [need("torch._no_such", "it is slower", instead=len)])
    assert table.no_such is len and len(lines) == 1


def test_a_need_lacks_members_or_fails_its_check(lines):
    table = Needs(
        "tests",
        [
            need("torch.nn.Module", "modules", members=("forward", "no_such")),
            need("torch.Tensor", "tensors", check=lambda found: "is a class"),
        ],
    )
    assert is_missing(table.Module) and is_missing(table.Tensor)
    assert [("no_such" in line, "is a class" in line) for line in lines] == [(True, False), (False, True)]


def test_a_build_that_cannot_have_it_says_nothing(lines):
    table = Needs("tests", [need("torch._C._no_cuda", "graphs", built=False)])
    assert is_missing(table.no_cuda) and lines == []


def test_tables_below_are_searched(lines):
    below = Needs("below", [need("torch._no_such", "nothing")])
    above = Needs("above", [need("torch.relu", "relu")], below)
    assert above.no_such is below.no_such and not above.has("no_such") and above.has("relu")
    with pytest.raises(AttributeError, match="nobody_declared"):
        _ = above.nobody_declared


def test_without_an_essential_need_nothing_compiles(lines):
    Needs("tests", [need("torch._no_such", "guards cannot be checked", essential=True)])
    why = needs.why_nothing_compiles()
    assert why is not None and "torch._no_such" in why and "guards cannot be checked" in why


def test_with_this_torch_everything_compiles():
    assert needs.why_nothing_compiles() is None


def test_stand_ins_can_be_keys_bases_and_owners(lines):
    gone, other = of_torch("torch._no_key"), of_torch("torch._nor_this")
    assert of_torch("torch._no_key") is gone and len(lines) == 2  # once for each
    assert {gone: 1, other: 2}[gone] == 1 and gone != other
    assert is_missing(gone.default) and not isinstance(1, gone)

    class Derived(gone):
        pass

    with pytest.raises(MissingNeed):
        Derived()


def test_operators_and_overloads_that_torch_lacks(lines):
    import torch

    some = Operators("aten")
    assert some.relu.default is torch.ops.aten.relu.default
    assert some.relu(torch.tensor(-1.0)) == 0
    assert is_missing(some.no_such_operator) and is_missing(some.relu.no_such_overload)
    assert is_missing(some.no_such_operator.default)
    assert len(lines) == 2  # once for each


@pytest.mark.parametrize("row", list(unstable), ids=lambda row: row.name)
def test_each_row_is_met_by_this_torch(row):
    assert unstable.has(row.name)


@pytest.mark.parametrize("row", list(unstable), ids=lambda row: row.name)
def test_each_row_is_dropped_with_one_line(row, lines, monkeypatch):
    def lacking(path):
        raise AttributeError(path)

    monkeypatch.setattr(needs, "look_up", lacking)
    table = Needs("tests", [row])
    assert len(lines) == int(row.built) and all(row.lost in line for line in lines)
    assert is_missing(getattr(table, row.name)) or getattr(table, row.name) is row.instead
    assert (needs.why_nothing_compiles() is not None) is row.essential


def test_names_are_looked_up_through_modules_classes_and_mappings():
    import torch

    assert needs.look_up("torch.nn.functional.relu") is torch.nn.functional.relu
    assert needs.look_up("torch.nn.Module.__dict__.forward") is vars(torch.nn.Module)["forward"]
    with pytest.raises(AttributeError):
        needs.look_up("torch.nn.no_such.relu")
    assert aten.add.Tensor is torch.ops.aten.add.Tensor
