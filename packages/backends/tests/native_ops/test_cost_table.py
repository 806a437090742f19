"""The cost table: classes, what is measured, what is kept, what is not believed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from framesmith_backends import storage
from framesmith_backends.native_ops.matmul import cost_table as table
from framesmith_backends.native_ops.matmul.cost_table import CostTable, MatmulClass, class_of


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_sizes_are_of_the_class_of_the_nearest_power_of_two() -> None:
    one = class_of("nt", 300, 1000, 1, True)
    assert (one.m, one.n, one.k) == (256, 1024, 1)
    assert class_of("nt", 363, 364, 23, True).m == 512 and class_of("nt", 362, 1, 1, True).m == 256
    assert one.key != class_of("nn", 300, 1000, 1, True).key != class_of("nn", 300, 1000, 1, False).key


def test_a_class_is_measured_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    one = class_of("nt", 64, 64, 64, True)
    _believe(monkeypatch)
    first = CostTable()
    chosen = first.fastest(one)
    assert chosen in table.PROVIDERS
    assert set(first.seconds[one.key]) == set(table.candidates(one))

    def never(_: object) -> dict[str, float]:
        raise AssertionError("measured again")

    monkeypatch.setattr(table, "measured", never)
    assert CostTable().fastest(one) == chosen


def test_our_own_kernel_is_tried_where_libraries_are_weak() -> None:
    few, many = class_of("nt", 8, 1024, 1024, True), class_of("nt", 512, 1024, 1024, True)
    assert "native" in table.candidates(few) and "native" not in table.candidates(many)


def test_a_row_that_lacks_a_provider_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    one, found = class_of("nt", 8, 64, 64, True), _empty()
    found.seconds[one.key] = {"aten": 1.0}
    monkeypatch.setattr(table, "measured", lambda _: ({"aten": 1.0, "onednn": 0.5, "native": 0.7}, True))
    assert found.fastest(one) == "onednn"


def test_another_provider_must_be_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one = class_of("nt", 8, 64, 64, True)
    for seconds, wanted in (
        ({"aten": 1.0, "onednn": 0.98, "native": 0.99}, "aten"),
        ({"aten": 1e-5, "onednn": 5e-6, "native": 5e-6}, "aten"),  # a call costs as much
        ({"aten": 1.0, "onednn": 0.8, "native": 0.7}, "native"),
        ({"aten": 1.0, "onednn": 0.8}, "onednn"),
    ):
        monkeypatch.setattr(table, "measured", lambda _, row=seconds: (row, True))
        assert CostTable.fastest(_empty(), one) == wanted


def _empty() -> CostTable:
    found = CostTable()
    found.seconds = {}
    return found


@pytest.mark.parametrize("row", [{}, {"onednn": 1.0}, {"aten": "1", "onednn": 1.0, "native": 1.0}, 3, {"aten": -1.0}])
def test_rows_that_make_no_sense_are_left_out(row: object) -> None:
    storage.write(table.file_name(), json.dumps({"key": row}).encode())
    assert CostTable().seconds == {}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"null", b'["a"]'])
def test_content_that_is_no_table_is_left_out(content: bytes) -> None:
    storage.write(table.file_name(), content)
    assert CostTable().seconds == {}


def test_two_tables_add_to_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    usable = [p for p in table.PROVIDERS if table.why_not(p) is None]
    monkeypatch.setattr(table, "measured", lambda _: (dict.fromkeys(usable, 1.0), True))
    one, other = CostTable(), CostTable()
    one.fastest(class_of("nt", 8, 8, 8, True))
    other.fastest(class_of("nn", 8, 8, 8, True))
    assert len(CostTable().seconds) == 2


def test_the_number_of_threads_is_part_of_the_class() -> None:
    before = class_of("nt", 8, 8, 8, True)
    torch.set_num_threads(1)
    assert class_of("nt", 8, 8, 8, True) != before


def test_a_measurement_is_of_real_tensors_whatever_is_around() -> None:
    with FakeTensorMode(), torch.device("meta"):
        found = table._timed(class_of("tn", 16, 16, 16, True), 16)
    assert all(seconds > 0 for runs in found.values() for seconds in runs)


def test_what_a_busy_machine_says_is_believed_where_it_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = class_of("nt", 512, 1024, 1024, True), class_of("nt", 512, 512, 1024, True)
    found = _empty()
    asked: list[int] = []

    def busy(one: MatmulClass, m: int) -> dict[str, list[float]]:
        asked.append(m)
        return {"aten": [2.0, 12.0, 12.0, 9.0, 1.0], "onednn": [0.9 if one.n == 1024 else 0.5] * 5}

    monkeypatch.setattr(table, "_timed", busy)
    monkeypatch.setattr(table, "candidates", lambda one: ["aten", "onednn"])
    assert found.fastest(one) == found.fastest(one) == "aten" and found.fastest(other) == "onednn"
    assert asked == [64, 128] and not found.seconds and CostTable().seconds == {}  # neither asked again nor believed


def test_a_machine_that_is_never_quiet_is_measured_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    one = class_of("nt", 512, 512, 512, True)
    monkeypatch.setattr(table, "candidates", lambda one: ["aten", "onednn"])
    rows = iter([{"aten": 1.0, "onednn": 0.9}, {"aten": 3.0, "onednn": 0.7}, {"aten": 1.1, "onednn": 2.0}])
    monkeypatch.setattr(table, "measured", lambda _: (next(rows), False))
    assert [CostTable().fastest(one) for _ in range(table.MOST_BUSY)] == ["aten", "onednn", "onednn"]
    assert CostTable().fastest(one) == "onednn"  # of the best of all, which nobody measures again
    assert CostTable().of_busy[one.key] == {"aten": 1.0, "onednn": 0.7} and CostTable().seconds == {}


def test_a_quiet_machine_is_believed_before_a_busy_one(monkeypatch: pytest.MonkeyPatch) -> None:
    one = class_of("nt", 512, 512, 512, True)
    monkeypatch.setattr(table, "candidates", lambda one: ["aten", "onednn"])
    rows = iter([({"aten": 1.0, "onednn": 0.5}, False), ({"aten": 1.0, "onednn": 0.99}, True)])
    monkeypatch.setattr(table, "measured", lambda _: next(rows))
    assert CostTable().fastest(one) == "onednn"
    assert CostTable().fastest(one) == CostTable().fastest(one) == "aten"


@pytest.mark.parametrize("row", [{}, 3, {"seconds": {"aten": 1.0}}, {"seconds": {}, "processes": 9}])
def test_rows_of_busy_machines_that_make_no_sense_are_left_out(row: object) -> None:
    storage.write(table.busy_file_name(), json.dumps({"key": row}).encode())
    assert CostTable().of_busy == {}


def test_an_interrupted_measurement_is_of_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([100, 110])
    monkeypatch.setattr(table, "preemptions", lambda: next(counts))
    monkeypatch.setattr(table, "_timed", lambda one, m: {"aten": [0.04] * 5, "onednn": [0.02] * 5})
    assert not table.measured(class_of("nt", 512, 256, 256, True))[1]


def _believe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else runs on the machine."""
    monkeypatch.setattr(table, "STEADY", float("inf"))
    monkeypatch.setattr(table, "MOST_PREEMPTIONS", float("inf"))


def test_fewer_rows_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    _believe(monkeypatch)
    one = class_of("nt", 2048, 1024, 1024, True)
    monkeypatch.setattr(table, "_timed", lambda one, m: {"aten": [m * 1e-6] * 5, "onednn": [m * 2e-6] * 5})
    assert table.measured(one) == ({"aten": 2048 * 1e-6, "onednn": 2048 * 2e-6}, True)
