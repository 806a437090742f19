"""The how-to pages hold: their diffs apply, touch as many files as they say, and their commands pass.

Each page is tried in a copy of the repository's tracked files, with the extension modules that are installed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "howto").glob("add-*.md"))


def blocks(page: Path, language: str) -> list[str]:
    """Return the page's fenced blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def files_in(diff: str) -> set[str]:
    """Return the paths of the files that a diff creates, changes or deletes."""
    return set(re.findall(r"^diff --git a/(\S+) b/", diff, re.MULTILINE))


def run(command: list[str], folder: Path, **env: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages, the tools and the pages, as a repository of its own."""
    folder = tmp_path_factory.mktemp("howto") / "repository"
    ignored = shutil.ignore_patterns("__pycache__", "*.so", ".*")
    for name in ("packages", "tools", "docs", "integration_tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for package in (folder / "packages").glob("*/src/*"):
        spec = importlib.util.find_spec(package.name)
        for place in (spec.submodule_search_locations or []) if spec is not None else []:
            for extension in Path(place).glob("*.so"):
                shutil.copy(extension, package)
    identity = ["-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    run(["git", "init", "-q"], folder)
    run(["git", "add", "-A", "-f"], folder)
    run(["git", *identity, "commit", "-q", "-m", "A copy"], folder)
    return folder


def apply(checkout: Path, page: Path) -> None:
    """Bring a page's diffs, and no other page's, into the copy."""
    run(["git", "reset", "-q", "--hard"], checkout)
    run(["git", "clean", "-q", "-d", "-f"], checkout)
    for number, diff in enumerate(blocks(page, "diff")):
        patch = checkout.parent / f"{page.stem}-{number}.diff"
        patch.write_text(diff)
        run(["git", "apply", str(patch)], checkout)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_applied(checkout: Path, page: Path) -> None:
    diffs, commands = blocks(page, "diff"), blocks(page, "shell")
    said = re.search(r"touches (\d+) files?\b", page.read_text())
    assert diffs and commands and said is not None, "a page has diffs, a command, and says how many files it touches"
    touched = {file for diff in diffs for file in files_in(diff)}
    assert len(touched) == int(said[1]), sorted(touched)
    apply(checkout, page)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_applied_and_run(checkout: Path, page: Path) -> None:
    apply(checkout, page)
    path = os.pathsep.join(str(source) for source in sorted((checkout / "packages").glob("*/src")))
    for command in "\n".join(blocks(page, "shell")).strip().splitlines():
        words = command.split()
        assert words[:3] == ["python", "-m", "pytest"], command
        run([sys.executable, *words[1:], "-p", "no:cacheprovider"], checkout, PYTHONPATH=path)
