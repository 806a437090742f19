"""CPython's own tests pass and fail as without it when every function is decoded and encoded first."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("regression_run.py")
QUICK = [
    "test_grammar",
    "test_scope",
    "test_with",
    "test_patma",
    "test_exception_group",
    "test_super",
    "test_listcomps",
]
LONG = [*QUICK, "test_generators", "test_coroutines", "test_exceptions", "test_contextlib", "test_named_expressions",
        "test_dictcomps", "test_setcomps", "test_type_params", "test_descr", "test_functools", "test_itertools",
        "test_dataclasses", "test_enum", "test_typing", "test_asyncio"]  # fmt: skip


def outcomes(*arguments):
    done = subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr[-3000:]
    return {row["module"]: row for row in map(json.loads, done.stdout.splitlines())}


def test_same_outcomes_reencoded(long_run):
    pytest.importorskip("test.test_grammar", reason="this CPython came without its tests")
    names = LONG if long_run else QUICK
    plain, again = outcomes("--plain", *names), outcomes(*names)
    assert set(plain) == set(again)
    for name, row in plain.items():
        assert {key: again[name][key] for key in row} == row
    functions = max(row["reencoded"] for row in again.values())
    print(f"{sum(row['run'] for row in plain.values())} tests, {functions} functions re-encoded")
    assert functions > 1000
