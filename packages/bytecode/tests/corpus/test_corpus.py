"""The corpus run: files, counts and failures."""

import pytest

from framesmith_bytecode.corpus import round_trip
from framesmith_bytecode.corpus import run as corpus


@pytest.fixture
def tree(tmp_path):
    """Two good files of three code objects, one that is not Python, and one installed below."""
    (tmp_path / "one.py").write_text("x = lambda: 1\n")
    (tmp_path / "two.py").write_text("y = 2\n")
    (tmp_path / "bad.py").write_text("def (:\n")
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "three.py").write_text("z = 3\n")
    return tmp_path


def test_counts(tree, capsys):
    assert corpus.main([str(tree)]) == 0
    line = capsys.readouterr().out
    assert "4 code objects of 3 files (1 more are no valid Python here), 0 failures" in line
    assert corpus.main([str(tree / "one.py")]) == 0
    assert "2 code objects of 1 files, 0 failures" in capsys.readouterr().out


def test_installed_packages_are_skipped_below_a_root(tree):
    report = corpus.check_sources([tree], skip=corpus.INSTALLED)
    assert (report.files, report.codes, report.invalid) == (2, 3, 1)


def test_limit_ends_the_run(tree):
    assert corpus.check_sources([tree], limit=1).files == 1


def test_a_failure_is_reported_with_exit_status_1(tree, capsys, monkeypatch):
    monkeypatch.setattr(corpus, "round_trip_problem", lambda code: "odd" if code.co_name == "<lambda>" else None)
    assert corpus.main([str(tree)]) == 1
    out = capsys.readouterr().out
    assert "one.py: <lambda>: odd" in out
    assert "1 failures" in out


def test_a_crash_is_a_failure_like_others(tree, monkeypatch):
    monkeypatch.setattr(round_trip, "decode", lambda code: {}[code.co_name])
    report = corpus.check_sources([tree])
    assert len(report.failures) == report.codes == 4
    assert report.failures[0][2] == "KeyError: '<module>'"


def test_without_arguments_the_environment_is_checked(tree, capsys, monkeypatch):
    monkeypatch.setattr(corpus, "environment", lambda: {"library": tree, "installed": tree / "site-packages"})
    assert corpus.main([]) == 0
    first, second, total = capsys.readouterr().out.splitlines()
    assert first.startswith("library: 3 code objects of 2 files")
    assert second.startswith("installed: 1 code objects of 1 files")
    assert ": 4 code objects of 3 files" in total


def test_environment_is_the_standard_library_and_what_is_installed():
    directories = [directory.resolve() for directory in corpus.environment().values()]
    assert len(directories) == len(set(directories))
    for module in ("asyncio/__init__.py", "pytest/__init__.py"):
        assert any((directory / module).exists() for directory in directories)
