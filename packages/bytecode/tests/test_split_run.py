"""CPython's own tests pass and fail as without it when every function is cut in two."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("split_run.py")
QUICK = ["test_with", "test_exception_group", "test_scope"]
LONG = [*QUICK, "test_grammar", "test_patma", "test_exceptions", "test_except_star", "test_contextlib", "test_super",
        "test_listcomps", "test_functools", "test_itertools", "test_dataclasses", "test_enum", "test_descr",
        "test_collections", "test_raise", "test_fractions", "test_named_expressions"]  # fmt: skip
#: Tests that look at what a cut changes by its nature; parts of their names.
LOOKS_INSIDE = (
    "test_funcdef ",  # at the names of locals
    "TestTracing.",  # at each line that a trace function sees
    "PEP626Tests.",  # at the last frame of a traceback only
    "test_exit_exception_traceback ",  # at the frames of a traceback
    "TestTracebackType.test_attrs",  # the same
    "test_name_error_with_custom_exceptions ",  # at the lines of a traceback
    "ClassPropertiesAndMethods.test_slots",  # at how many objects there are
)


def rows(*arguments):
    done = subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(('{"module"', '{"counts"'))]
    for row in found[:-1]:
        row["bad"] = [test for test in row["bad"] if not any(part in test for part in LOOKS_INSIDE)]
    return found[:-1], found[-1]["counts"]


def test_same_outcomes_cut_in_two(long_run):
    pytest.importorskip("test.test_grammar", reason="this CPython came without its tests")
    names = LONG if long_run else QUICK
    plain, _ = rows("--plain", *names)
    cut, counts = rows("--seed", "0", *names)
    assert cut == plain
    print(f"{sum(row['run'] for row in plain)} of CPython's tests with functions cut in two: {counts}")
    assert counts["cut"] > 300
