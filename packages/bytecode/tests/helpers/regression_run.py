"""Runs CPython's own tests with every imported or compiled function decoded and encoded: a script, not a test.

`python regression_run.py [--plain] test_grammar test_with ...` prints one JSON line per module: tests run and the
ids of those that failed. `--plain` runs without re-encoding, to compare with. Modules that this CPython lacks are
skipped.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.machinery
import io
import json
import operator
import sys
import unittest
from collections.abc import Callable
from types import CodeType

COUNTS = {"functions": 0}


def reencode(code):
    from framesmith_bytecode.nested import map_code, walk_code

    COUNTS["functions"] += sum(1 for _ in walk_code(code))
    return map_code(code)


def install(transform: Callable[[CodeType], CodeType] = reencode) -> None:
    """Transform modules imported from source and results of `compile`."""
    # The modules of decoding must be imported before it is installed.
    importlib.import_module("framesmith_bytecode.nested")
    plain_compile = builtins.compile
    loader = importlib.machinery.SourceFileLoader

    def get_code(self, fullname):
        path = self.get_filename(fullname)
        return transform(plain_compile(self.get_data(path), path, "exec", dont_inherit=True))

    def compile(source, filename, mode, flags=0, dont_inherit=False, optimize=-1, **options):
        if not dont_inherit:
            inherited = sys._getframe(1).f_code.co_flags & 0x1FF0000  # the __future__ features of the caller
            flags = operator.index(flags) | inherited
        result = plain_compile(source, filename, mode, flags, True, optimize, **options)
        return transform(result) if isinstance(result, CodeType) else result

    loader.get_code = get_code
    builtins.compile = compile


def run(name: str) -> dict:
    """Outcome of one test module of CPython's suite."""
    suite = unittest.defaultTestLoader.loadTestsFromName(f"test.{name}")
    stream = io.StringIO()
    result = unittest.TextTestRunner(stream=stream, verbosity=0).run(suite)
    bad = sorted(
        {str(test) for test, _ in result.failures + result.errors} | {str(t) for t in result.unexpectedSuccesses}
    )
    return {"module": name, "run": result.testsRun, "skipped": len(result.skipped), "bad": bad}


def main() -> None:
    names = [name for name in sys.argv[1:] if not name.startswith("--")]
    plain = "--plain" in sys.argv
    details = "--details" in sys.argv
    if not plain:
        install()
    for name in names:
        try:
            importlib.import_module(f"test.{name}")
        except ModuleNotFoundError:
            continue
        outcome = run(name)
        row = {**outcome, "reencoded": COUNTS["functions"]} if not plain or details else outcome
        print("\n" + json.dumps(row), flush=True)  # what a test printed may not have ended its line


if __name__ == "__main__":
    main()
