"""CPython's own tests pass and fail as without it when every function is split in two."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "helpers" / "split_run.py"
QUICK = ["test_with", "test_exception_group", "test_scope"]
LONG = [*QUICK, "test_grammar", "test_patma", "test_exceptions", "test_except_star", "test_contextlib", "test_super",
        "test_listcomps", "test_functools", "test_itertools", "test_dataclasses", "test_enum", "test_descr",
        "test_collections", "test_raise", "test_fractions", "test_named_expressions",
        "test_tstring", "test_annotationlib", "test_lazy_import", "test_generators", "test_coroutines",
        "test_asyncgen", "test_type_params", "test_type_aliases", "test_type_annotations", "test_typing",
        "test_fstring", "test_string_literals", "test_class", "test_extcall", "test_unpack", "test_unpack_ex",
        "test_generator_stop", "test_contextlib_async", "test_positional_only_arg", "test_keywordonlyarg",
        "test_augassign", "test_builtin", "test_call", "test_decorators", "test_funcattrs", "test_global",
        "test_property", "test_metaclass", "test_dictcomps", "test_setcomps", "test_operator", "test_copy",
        "test_opcodes"]  # fmt: skip
#: Parts of names of tests that inspect details which a split changes by design.
LOOKS_INSIDE = (
    "test_funcdef ",  # names of locals
    "TestTracing.",  # lines seen by a trace function
    "PEP626Tests.",  # last frame of a traceback
    "test_exit_exception_traceback ",  # frames of a traceback
    "TestTracebackType.test_attrs",  # the same
    "test_name_error_with_custom_exceptions ",  # lines of a traceback
    "ClassPropertiesAndMethods.test_slots",  # number of objects
    "TestSourceLocations.test_jump_threading",  # positions of jumps
    "test_stack_in_coroutine_throw ",  # number of frames
    "test_origin_tracking",  # the same
    "test_super_deep ",  # depth of a recursion
    "test_all_any_tuple_",  # constants
    "test_obscure_super_errors ",  # the message of super() in a function without parameters
)


#: Tests that count events, lines and frames: their outcomes differ by the frame that a split adds.
COUNTS_EVENTS = ["test_sys_setprofile", "test_sys_settrace", "test_monitoring", "test_bdb"]


def rows(*arguments):
    done = subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(('{"module"', '{"counts"'))]
    for row in found[:-1]:
        row["bad"] = [test for test in row["bad"] if not any(part in test for part in LOOKS_INSIDE)]
    return found[:-1], found[-1]["counts"]


def test_same_outcomes_split_in_two(long_run):
    pytest.importorskip("test.test_grammar", reason="this CPython came without its tests")
    names = LONG if long_run else QUICK
    plain, _ = rows("--plain", *names)
    cut, counts = rows("--seed", "0", *names)
    assert [row for row in cut if row not in plain] == []
    assert len(cut) == len(plain)
    print(f"{sum(row['run'] for row in plain)} of CPython's tests with functions cut in two: {counts}")
    assert counts["cut"] > 300


def test_tools_run_through_halves(long_run):
    """Profilers, tracers, debuggers and `sys.monitoring` see all halves of functions, and none crashes."""
    pytest.importorskip("test.test_sys_setprofile", reason="this CPython came without its tests")
    names = COUNTS_EVENTS if long_run else COUNTS_EVENTS[:1]
    plain, _ = rows("--plain", *names)
    cut, counts = rows("--seed", "0", *names)
    assert [(row["module"], row["run"]) for row in cut] == [(row["module"], row["run"]) for row in plain]
    assert counts["cut"] > 30
