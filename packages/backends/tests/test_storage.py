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


def test_what_was_written_is_read(tmp_path: Path) -> None:
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


def test_what_nobody_reads_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MOST_BYTES", 4000)
    monkeypatch.setattr(storage, "WRITES_BETWEEN", 1)
    for k in range(8):
        storage.write(f"file{k}", bytes(1000))
        os.utime(tmp_path / "framesmith" / f"file{k}", (k, k))
        if k >= 1:
            assert storage.read("file0") == bytes(1000)  # read again and again
            os.utime(tmp_path / "framesmith" / "file0", (k + 0.5, k + 0.5))
    left = sorted(path.name for path in (tmp_path / "framesmith").iterdir())
    assert "file0" in left and "file7" in left and "file1" not in left and len(left) <= 4


def test_a_folder_that_others_may_write_to_is_left_alone(tmp_path: Path) -> None:
    assert storage.write("one", b"content")
    assert stat.S_IMODE((tmp_path / "framesmith").stat().st_mode) == 0o700
    (tmp_path / "framesmith").chmod(0o777)
    assert storage.read("one") is None and not storage.write("two", b"content")
