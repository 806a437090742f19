"""Names of torch that may move: this torch has them; without one, the row's feature is lost."""

from __future__ import annotations

import pytest

from framesmith_backends.torch_adapter import unstable
from framesmith_guards import needs

ROWS = list(unstable)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_row_is_met_by_this_torch(row):
    assert unstable.has(row.name)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_row_is_dropped_with_one_line(row, monkeypatch):
    def lacking(path):
        raise AttributeError(path)

    lines, tables = [], list(needs.TABLES)
    monkeypatch.setattr(needs, "look_up", lacking)
    monkeypatch.setattr(needs.logger, "warning", lambda text, *args: lines.append(text % args))
    try:
        table = needs.Needs("tests", [row])
        assert len(lines) == int(row.built) and all(row.lost in line for line in lines)
        assert needs.is_missing(getattr(table, row.name)) or getattr(table, row.name) is row.instead
        assert (needs.why_nothing_compiles() is not None) is row.essential
    finally:
        needs.TABLES[:] = tables
