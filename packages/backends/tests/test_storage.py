"""Files of the cache folder: whole, damaged, absent, not writable."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from framesmith_backends import storage


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_written_files_are_read(tmp_path: Path) -> None:
    assert storage.read("one") is None
    assert storage.write("one", b"a\nb\0")
    assert storage.write("one", b"c\nd")
    assert storage.read("one") == b"c\nd"
    assert [p.name for p in (tmp_path / "framesmith").iterdir()] == ["one"]


@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b"", lambda b: b + b"x", lambda b: b"\xff" + b[1:]])
def test_damage_is_seen(tmp_path: Path, change: object) -> None:
    storage.write("one", b"content")
    path = tmp_path / "framesmith" / "one"
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    assert storage.read("one") is None


def test_a_folder_that_cannot_be_made_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "framesmith").write_text("a file is in the way")
    assert not storage.write("one", b"content")
    assert storage.read("one") is None


def test_a_relative_cache_home_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "somewhere")
    where = storage.folder()
    assert where is None or where.parent.name == ".cache"


def test_code_that_nobody_reads_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MOST_BYTES", 4000)
    monkeypatch.setattr(storage, "WRITES_BETWEEN", 1)
    folder = tmp_path / "framesmith"
    storage.write("table.json", bytes(3000))
    for k in range(8):
        storage.write(f"{k}.o", bytes(1000))
        os.utime(folder / f"{k}.o", (k, k))
        assert storage.read("0.o") == bytes(1000)  # which makes it the one read last
    left = sorted(path.name for path in folder.iterdir())
    assert {"0.o", "7.o", "table.json"} <= {*left} and "1.o" not in left and len(left) <= 5


def test_a_folder_that_may_be_read_alone_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.write("one", b"content")

    def refuse(*args: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "utime", refuse)
    assert storage.read("one") == b"content"


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    assert storage.write("one", b"content")
    assert stat.S_IMODE((tmp_path / "framesmith").stat().st_mode) == 0o700
    (tmp_path / "framesmith").chmod(0o777)
    assert storage.read("one") is None and not storage.write("two", b"content")
