"""Runs CPython's own tests with every imported or compiled function split in two: a script, not a test.

`python split_run.py [--plain] [--seed N] test_grammar test_with ...` prints one JSON line per module as
regression_run.py does, and at the end one with the counts: functions seen, split, and refused by reason. The index
of a split depends on the seed and on the name and line of the function.
"""

from __future__ import annotations

import argparse
import importlib
import json
import zlib
from collections import Counter
from types import CodeType

import regression_run

_GENERATORS, _FUNCTION = 0x20 | 0x80 | 0x200, 0x03
#: A function that names one of these depends on the number of frames, to which the prefix adds one.
COUNTS_FRAMES = frozenset(
    ("_getframe", "_getframemodulename", "_caller", "currentframe", "stack", "warn", "warn_explicit", "extract_stack",
     "findCaller", "_is_internal_frame", "_deprecated", "getrefcount")
)  # fmt: skip


class Splitter:
    """Replaces every function's code by the prefix of one split."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.counts: Counter[str] = Counter()

    def __call__(self, code: CodeType) -> CodeType:
        inner = [self(value) if isinstance(value, CodeType) else value for value in code.co_consts]
        if any(new is not old for new, old in zip(inner, code.co_consts, strict=True)):
            code = code.replace(co_consts=tuple(inner))
        if code.co_flags & _FUNCTION != _FUNCTION:
            return code
        self.counts["functions"] += 1
        reason = "generator or coroutine" if code.co_flags & _GENERATORS else None
        if reason is None and COUNTS_FRAMES.intersection(code.co_names):
            reason = "counts frames"
        if reason is None:
            return self.cut(code)
        self.counts[reason] += 1
        return code

    def cut(self, code: CodeType) -> CodeType:
        """The prefix that replaces the function, or the function if the split is refused."""
        from framesmith_bytecode import Analyses, decode, split, why_no_continuation

        known = Analyses(decode(code))
        indices = [index for index, depth in enumerate(known.stack_states.before) if depth is not None]
        chosen = zlib.crc32(f"{self.seed} {code.co_qualname} {code.co_firstlineno}".encode()) % len(indices)
        reason = why_no_continuation(known, indices[chosen], own_cells=True)
        self.counts[reason or "cut"] += 1
        return code if reason else split(known, indices[chosen]).prefix


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("modules", nargs="+")
    options = parser.parse_args()
    splitter = Splitter(options.seed)
    if not options.plain:
        importlib.import_module("framesmith_bytecode")
        regression_run.install(splitter)
    for name in options.modules:
        try:
            importlib.import_module(f"test.{name}")
        except ModuleNotFoundError:
            continue
        print("\n" + json.dumps(regression_run.run(name)), flush=True)
    print("\n" + json.dumps({"counts": splitter.counts}), flush=True)


if __name__ == "__main__":
    main()
