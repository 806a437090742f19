"""A part of the corpus on every interpreter on the path: the package is pure Python and needs no installation."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import framesmith_bytecode
from framesmith_bytecode.cpython.version_table import TABLES
from tools.interpreters import find_interpreter

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


@pytest.mark.parametrize("version", TABLES, ids=lambda version: f"{version[0]}.{version[1]}")
def test_a_part_of_the_corpus_comes_back(version):
    found = None if version == sys.version_info[:2] else find_interpreter(f"{version[0]}.{version[1]}")
    if found is None:
        pytest.skip("the running version, or not found")
    source = Path(framesmith_bytecode.__file__).parents[1]
    done = subprocess.run(
        [found, "-c", ROUND_TRIP, *SAMPLE],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) > 400
