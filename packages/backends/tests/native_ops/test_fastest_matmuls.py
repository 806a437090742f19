"""The fastest provider of a class of matmuls: what is timed, what is stored, what is not believed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from framesmith_backends import storage
from framesmith_backends.autotune.autotuner import MOST_BUSY, Timing, autotuner
from framesmith_backends.native_ops.matmul import providers
from framesmith_backends.native_ops.matmul.providers import MatmulClass, class_of, fastest


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    autotuner.cache_clear()


def in_another_process(one: MatmulClass) -> str:
    """The choice of a process that knows what is on disk."""
    autotuner.cache_clear()
    return fastest(one)


def stored(one: MatmulClass) -> dict[str, object] | None:
    """The file of a class."""
    content = storage.read(f"choice-{one.key}.json")
    found: dict[str, object] | None = None if content is None else json.loads(content)
    return found


def timing(seconds: dict[str, float], busy: int = 0) -> Callable[[MatmulClass], Timing]:
    return lambda _: Timing(seconds, busy)


def never(_: object) -> Timing:
    raise AssertionError("measured again")


def without_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MatmulClass, "others", property(lambda _: ("onednn",)))


def test_sizes_are_of_the_class_of_the_nearest_power_of_two() -> None:
    one = class_of("nt", 300, 1000, 1, True)
    assert (one.m, one.n, one.k) == (256, 1024, 1)
    assert class_of("nt", 363, 364, 23, True).m == 512 and class_of("nt", 362, 1, 1, True).m == 256
    assert one.key != class_of("nn", 300, 1000, 1, True).key != class_of("nn", 300, 1000, 1, False).key


def test_a_class_is_measured_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    one = class_of("nt", 64, 64, 64, True)
    _believe(monkeypatch)
    chosen = fastest(one)
    assert chosen in providers.PROVIDERS
    found = stored(one)
    assert found is not None and found["busy"] == 0 and found["times"].keys() == {"aten", *one.others}  # type: ignore[attr-defined]
    monkeypatch.setattr(providers, "measured", never)
    assert fastest(one) == in_another_process(one) == chosen


def test_our_own_kernel_is_tried_where_libraries_are_weak() -> None:
    few, many = class_of("nt", 8, 1024, 1024, True), class_of("nt", 512, 1024, 1024, True)
    assert "native" in few.others and "native" not in many.others


def test_times_that_lack_a_provider_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    one = class_of("nt", 8, 64, 64, True)
    with monkeypatch.context() as patch:
        patch.setattr(MatmulClass, "others", property(lambda _: ()))
        patch.setattr(providers, "measured", timing({"aten": 1.0}))
        assert fastest(one) == "aten"
    monkeypatch.setattr(providers, "measured", timing({"aten": 1.0, "onednn": 0.5, "native": 0.7}))
    assert fastest(one) == "onednn"


def test_another_provider_must_be_worth_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = class_of("nt", 8, 64, 64, True)
    for number, (seconds, wanted) in enumerate((
        ({"aten": 1.0, "onednn": 0.98, "native": 0.99}, "aten"),
        ({"aten": 1e-5, "onednn": 5e-6, "native": 5e-6}, "aten"),  # a call costs as much
        ({"aten": 1.0, "onednn": 0.8, "native": 0.7}, "native"),
        ({"aten": 1.0, "onednn": 0.8}, "onednn"),
    )):  # fmt: skip
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / str(number)))
        monkeypatch.setattr(providers, "measured", timing(seconds))
        assert in_another_process(one) == wanted


@pytest.mark.parametrize("times", [{}, {"onednn": 1.0}, {"aten": "1", "onednn": 0.1}, 3, {"aten": -1.0}, {"b": 1.0}])
def test_times_that_make_no_sense_are_left_out(times: object, monkeypatch: pytest.MonkeyPatch) -> None:
    is_left_out(json.dumps({"format": 1, "times": times}).encode(), monkeypatch)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"null", b'["a"]'])
def test_content_that_is_no_timing_is_left_out(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    is_left_out(content, monkeypatch)


def is_left_out(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    one = class_of("nt", 512, 64, 64, True)
    without_native(monkeypatch)
    storage.write(f"choice-{one.key}.json", content)
    monkeypatch.setattr(providers, "measured", timing({"aten": 1.0, "onednn": 0.5}))
    assert fastest(one) == "onednn"
    assert stored(one) == {"format": 1, "times": {"aten": 1.0, "onednn": 0.5}, "busy": 0}


def test_two_processes_store_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = class_of("nt", 8, 8, 8, True), class_of("nn", 8, 8, 8, True)
    monkeypatch.setattr(providers, "measured", lambda one: Timing(dict.fromkeys(("aten", *one.others), 1.0)))
    fastest(one)
    in_another_process(other)
    monkeypatch.setattr(providers, "measured", never)
    assert in_another_process(one) == fastest(other) == "aten"


def test_the_number_of_threads_is_part_of_the_class() -> None:
    before = class_of("nt", 8, 8, 8, True)
    torch.set_num_threads(1)
    assert class_of("nt", 8, 8, 8, True) != before


def test_a_measurement_is_of_real_tensors_whatever_is_around() -> None:
    with FakeTensorMode(), torch.device("meta"):
        found = providers._timed(class_of("tn", 16, 16, 16, True), 16)
    assert all(seconds > 0 for runs in found.values() for seconds in runs)


def test_measurements_of_a_busy_machine_count_where_they_are_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = class_of("nt", 512, 1024, 1024, True), class_of("nt", 512, 512, 1024, True)
    asked: list[int] = []

    def busy(one: MatmulClass, m: int) -> dict[str, list[float]]:
        asked.append(m)
        return {"aten": [2.0, 12.0, 12.0, 9.0, 1.0], "onednn": [0.9 if one.n == 1024 else 0.5] * 5}

    monkeypatch.setattr(providers, "_timed", busy)
    without_native(monkeypatch)
    assert fastest(one) == fastest(one) == "aten" and fastest(other) == "onednn"
    assert asked == [64, 128]  # not asked again here
    assert in_another_process(one) == "aten" and asked == [64, 128, 64]  # and not believed elsewhere


def test_a_machine_that_is_never_quiet_is_measured_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    one = class_of("nt", 512, 512, 512, True)
    without_native(monkeypatch)
    rows = iter([{"aten": 1.0, "onednn": 0.9}, {"aten": 3.0, "onednn": 0.7}, {"aten": 1.1, "onednn": 2.0}])
    monkeypatch.setattr(providers, "measured", lambda _: Timing(next(rows), 1))
    assert [in_another_process(one) for _ in range(MOST_BUSY)] == ["aten", "onednn", "onednn"]
    assert in_another_process(one) == "onednn"  # of the best of all, which nobody measures again
    assert stored(one) == {"format": 1, "times": {"aten": 1.0, "onednn": 0.7}, "busy": MOST_BUSY}


def test_a_quiet_machine_is_believed_before_a_busy_one(monkeypatch: pytest.MonkeyPatch) -> None:
    one = class_of("nt", 512, 512, 512, True)
    without_native(monkeypatch)
    rows = iter([Timing({"aten": 1.0, "onednn": 0.5}, 1), Timing({"aten": 1.0, "onednn": 0.99})])
    monkeypatch.setattr(providers, "measured", lambda _: next(rows))
    assert fastest(one) == "onednn"
    assert in_another_process(one) == fastest(one) == in_another_process(one) == "aten"


def test_a_busy_machine_does_not_replace_what_a_quiet_one_said(monkeypatch: pytest.MonkeyPatch) -> None:
    one = class_of("nt", 512, 512, 512, True)
    without_native(monkeypatch)

    def meanwhile(one: MatmulClass) -> Timing:
        """Another process stores its timing before this one does."""
        content = {"format": 1, "times": {"aten": 1.0, "onednn": 0.5}, "busy": 0}
        storage.write(f"choice-{one.key}.json", json.dumps(content).encode())
        return Timing({"aten": 1.0, "onednn": 2.0}, 1)

    monkeypatch.setattr(providers, "measured", meanwhile)
    assert fastest(one) == in_another_process(one) == "onednn"


@pytest.mark.parametrize("busy", [None, "1", 1.0, True])
def test_a_number_of_processes_that_makes_no_sense_is_left_out(busy: object, monkeypatch: pytest.MonkeyPatch) -> None:
    is_left_out(json.dumps({"format": 1, "times": {"aten": 1.0, "onednn": 2.0}, "busy": busy}).encode(), monkeypatch)


def test_an_interrupted_measurement_is_of_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([100, 110])
    monkeypatch.setattr(providers, "preemptions", lambda: next(counts))
    monkeypatch.setattr(providers, "_timed", lambda one, m: {"aten": [0.04] * 5, "onednn": [0.02] * 5})
    assert providers.measured(class_of("nt", 512, 256, 256, True)).busy == 1


def _believe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else runs on the machine."""
    monkeypatch.setattr(providers, "STEADY", float("inf"))
    monkeypatch.setattr(providers, "MOST_PREEMPTIONS", float("inf"))


def test_fewer_rows_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    _believe(monkeypatch)
    one = class_of("nt", 2048, 1024, 1024, True)
    monkeypatch.setattr(providers, "_timed", lambda one, m: {"aten": [m * 1e-6] * 5, "onednn": [m * 2e-6] * 5})
    assert providers.measured(one) == Timing({"aten": 2048 * 1e-6, "onednn": 2048 * 2e-6})


def test_what_is_timed_on_the_cpu_does_not_wait_for_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "measured", timing({"aten": 2e-3, "onednn": 1e-3, "native": 3e-3}))
    one, chosen = class_of("nt", 64, 64, 64, True), []

    def on_device(missing: object) -> list[Timing | None]:
        other = threading.Thread(target=lambda: chosen.append(fastest(one)))
        other.start()
        other.join(timeout=60)
        return [None]

    autotuner("device").timings({"a trial": one}, on_device)
    assert chosen == ["onednn"]
