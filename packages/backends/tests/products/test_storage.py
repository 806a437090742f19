"""Files of the cache folder: whole, damaged, absent, not writable."""

from __future__ import annotations

from pathlib import Path

import pytest

from framesmith_backends.products import storage


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
