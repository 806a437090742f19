"""A part of the corpus on every interpreter that is found: the package is pure Python and needs no installation.

Interpreters are `python3.NN` on the path, and those listed in FRAMESMITH_PYTHONS, separated like a path.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import framesmith_bytecode
from framesmith_bytecode.cpython.running import TABLES

SAMPLE = ("contextlib.py", "dataclasses.py", "asyncio/base_events.py", "json", "modulefinder.py", "shutil.py")
ROUND_TRIP = """
import sys, sysconfig
from pathlib import Path
from framesmith_bytecode.corpus.run import check_sources
root = Path(sysconfig.get_paths()["stdlib"])
report = check_sources(root / name for name in sys.argv[1:])
print(report.codes, report.failures)
sys.exit(bool(report.failures))
"""


def version_of(program: str) -> tuple[int, int] | None:
    asked = subprocess.run(
        [program, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, timeout=60
    )
    return tuple(map(int, asked.stdout.split())) if asked.returncode == 0 else None


def interpreters() -> dict[tuple[int, int], str]:
    """One for each version, without the running one's."""
    listed = [entry for entry in os.environ.get("FRAMESMITH_PYTHONS", "").split(os.pathsep) if entry]
    found = [*listed, *filter(None, (shutil.which(f"python{major}.{minor}") for major, minor in TABLES))]
    versions = {}
    for program in found:
        version = version_of(program)
        if version in TABLES and version != sys.version_info[:2]:
            versions.setdefault(version, program)
    return versions


@pytest.fixture(scope="module")
def found():
    return interpreters()


@pytest.mark.parametrize("version", TABLES, ids=lambda version: f"{version[0]}.{version[1]}")
def test_a_part_of_the_corpus_comes_back(version, found):
    if version not in found:
        pytest.skip("the running version, or not found")
    source = Path(framesmith_bytecode.__file__).parents[1]
    done = subprocess.run(
        [found[version], "-c", ROUND_TRIP, *SAMPLE],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) > 400
