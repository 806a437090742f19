"""CPython's own tests pass and fail as without it when every function is decoded and encoded first."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "helpers" / "regression_run.py"
QUICK = [
    "test_grammar",
    "test_scope",
    "test_with",
    "test_patma",
    "test_exception_group",
    "test_super",
    "test_listcomps",
]
#: Language, then libraries; then tests that inspect code, lines, frames and tracebacks.
LONG = [*QUICK, "test_generators", "test_coroutines", "test_exceptions", "test_contextlib", "test_named_expressions",
        "test_dictcomps", "test_setcomps", "test_type_params", "test_descr", "test_functools", "test_itertools",
        "test_dataclasses", "test_enum", "test_typing", "test_asyncio",
        "test_asyncgen", "test_fstring", "test_class", "test_extcall", "test_unpack_ex", "test_generator_stop",
        "test_contextlib_async", "test_raise", "test_positional_only_arg", "test_keywordonlyarg", "test_augassign",
        "test_builtin", "test_call", "test_decorators", "test_funcattrs", "test_global", "test_property",
        "test_metaclass", "test_type_aliases", "test_type_annotations", "test_unpack", "test_string_literals",
        "test_collections", "test_operator", "test_copy", "test_pickle",
        "test_traceback", "test_sys_settrace", "test_monitoring", "test_bdb", "test_gc",
        "test_annotationlib", "test_tstring", "test_except_star", "test_lazy_import", "test_opcodes",
        "test_dis", "test_code", "test_peepholer", "test_inspect", "test_frame", "test_sys_setprofile",
        "test_yield_from", "test_genexps", "test_compile", "test_syntax", "test_types", "test_typechecks",
        "test_genericalias", "test_genericclass", "test_subclassinit", "test_dynamicclassattribute",
        "test_pep646_syntax", "test_baseexception", "test_exception_variations", "test_exception_hierarchy",
        "test_opcache", "test_bool", "test_dict", "test_dictviews", "test_set", "test_list", "test_tuple", "test_iter",
        "test_slice"]  # fmt: skip
#: Tests that see the frames of the script's own import hook and `compile`, kinds of parameters (since 3.14) that a
#: code object loses in `code.replace()` as well, and whether two code objects share one line table.
SEES_THE_SCRIPT = ("test_skip (test.test_bdb.", "test_caret_multiline_expression_syntax_error (test.test_traceback.",
                   "test_local_kinds (test.test_code.", "test_var_counts (test.test_code.",
                   "test_merge_code_attrs (test.test_compile.")  # fmt: skip


def outcomes(*arguments):
    done = subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"module"')]  # some tests print, too
    rows = {row["module"]: row for row in map(json.loads, lines)}
    for row in rows.values():
        row["bad"] = [test for test in row["bad"] if not test.startswith(SEES_THE_SCRIPT)]
    return rows


def differences(plain, again):
    """Modules with different outcomes."""
    return [name for name, row in plain.items() if {key: again[name][key] for key in row} != row]


def test_same_outcomes_reencoded(long_run):
    pytest.importorskip("test.test_grammar", reason="this CPython came without its tests")
    names = LONG if long_run else QUICK
    plain, again = outcomes("--plain", *names), outcomes(*names)
    assert set(plain) == set(again)
    functions = max(row["reencoded"] for row in again.values())
    for name in differences(plain, again):  # some tests of threads and sockets are flaky: run both once more
        print(f"{name} differed and is run again")
        plain |= outcomes("--plain", name)
        again |= outcomes(name)
    for name in differences(plain, again):
        assert {key: again[name][key] for key in plain[name]} == plain[name]
    run, skipped, bad = (
        [sum(count(row) for row in rows.values()) for rows in (plain, again)]
        for count in (lambda row: row["run"], lambda row: row["skipped"], lambda row: len(row["bad"]))
    )
    print(f"{len(plain)} modules of CPython's tests, plain and with {functions:,} functions re-encoded:")
    print(f"tests run {run[0]:,} and {run[1]:,}, skipped {skipped[0]} and {skipped[1]}, failed {bad[0]} and {bad[1]}")
    assert functions > 1000
