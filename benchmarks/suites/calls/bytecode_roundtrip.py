"""Round trip of one function through framesmith_bytecode and through the `bytecode` library, in the same run.

`python -m benchmarks.suites.calls.bytecode_roundtrip [--json FILE]` prints milliseconds for functions of several sizes.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from importlib import metadata
from types import CodeType
from typing import Any

from framesmith_bytecode import decode, encode

SOURCE = """
def function(a, b=1, *rest, key=None, **options):
    total = 0
    for item in rest:
        if item > a and not options.get("skip"):
            total += item * b
        else:
            total -= key(item, name=f"{{item!r}}")
    try:
{body}
    except (ValueError, KeyError) as error:
        return [str(error), total]
    return {{"total": total, "rest": [x for x in rest]}}
"""
LINE = "        total = self_{i}.method(total, a + {i}, b)[{i}].attr if a < {i} else key(total)\n"


def make_function(lines: int) -> CodeType:
    """A function's code object with calls, attributes, branches, a loop and a handler; about 24 instructions a line."""
    body = "".join(LINE.format(i=i) for i in range(lines))
    module = compile(SOURCE.format(body=body), "<benchmark>", "exec")
    return next(value for value in module.co_consts if isinstance(value, CodeType))


def ours(code: CodeType) -> CodeType:
    """One round trip here."""
    return encode(decode(code))


def theirs() -> Callable[[CodeType], CodeType] | None:
    """One round trip in the `bytecode` library, if it is installed."""
    try:
        import bytecode
    except ImportError:
        return None

    def round_trip(code: CodeType) -> CodeType:
        result: CodeType = bytecode.Bytecode.from_code(code).to_code()
        return result

    return round_trip


def seconds(action: Callable[[CodeType], CodeType], code: CodeType) -> float:
    """Time of one call."""
    start = time.perf_counter()
    action(code)
    return time.perf_counter() - start


def measure(lines: int, rounds: int = 15) -> dict[str, Any]:
    """Medians of interleaved runs."""
    code = make_function(lines)
    other = theirs()
    mine: list[float] = []
    others: list[float] = []
    for _ in range(rounds):
        mine.append(seconds(ours, code))
        if other is not None:
            others.append(seconds(other, code))
    count = sum(1 for item in decode(code).instructions if type(item).__name__ == "Instr")
    row: dict[str, Any] = {"instructions": count, "framesmith_ms": statistics.median(mine) * 1e3}
    if others:
        row["bytecode_ms"] = statistics.median(others) * 1e3
        row["times_faster"] = statistics.median(b / a for a, b in zip(mine, others, strict=True))
    return row


def main() -> None:
    """Print (and with --json write) one row per function size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    rows = [measure(lines) for lines in (1, 8, 52)]
    for row in rows:
        print("  ".join(f"{key} {value:.3f}".removesuffix(".000") for key, value in row.items()))
    if arguments.json:
        library = metadata.version("bytecode") if theirs() is not None else None
        result = {"suite": "bytecode_roundtrip", "python": platform.python_version(), "bytecode": library, "rows": rows}
        with open(arguments.json, "w", encoding="utf-8") as file:
            file.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
