"""Round-trips every code object of Python sources: `python -m framesmith_bytecode.corpus DIRECTORY...`."""

from __future__ import annotations

import platform
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType

from framesmith_bytecode.compare import difference
from framesmith_bytecode.constants import same_constant
from framesmith_bytecode.decode import decode
from framesmith_bytecode.encode import encode
from framesmith_bytecode.nested import walk_code
from framesmith_bytecode.verify import problems

_METADATA = (
    "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_nlocals", "co_flags", "co_names", "co_varnames",
    "co_filename", "co_name", "co_qualname", "co_firstlineno", "co_freevars", "co_cellvars",
)  # fmt: skip


def round_trip_problem(code: CodeType) -> str | None:
    """What decode, encode and a second decode get wrong about one code object, None if nothing."""
    first = decode(code)
    wrong = problems(first)
    if wrong:
        return wrong[0]
    again = encode(first)
    for name in _METADATA:
        if getattr(code, name) != getattr(again, name):
            return f"{name}: {getattr(code, name)!r} became {getattr(again, name)!r}"
    if not same_constant(code.co_consts, again.co_consts[: len(code.co_consts)]):
        return "co_consts changed"
    return difference(first, decode(again))


def sources(paths: Iterable[Path]) -> Iterator[Path]:
    """All Python files among and below the paths."""
    for path in paths:
        if path.is_dir():
            yield from sorted(path.rglob("*.py"))
        else:
            yield path


def compile_file(path: Path) -> CodeType | None:
    """The module's code object; None if it is not valid for this Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError, UnicodeError, OSError, RecursionError):
        return None


@dataclass(slots=True)
class Report:
    """Counts of a run; `failures` are (file, function, problem)."""

    files: int = 0
    codes: int = 0
    failures: list[tuple[str, str, str]] = field(default_factory=list)


def check_sources(paths: Iterable[Path], limit: int | None = None) -> Report:
    """Round-trip all code objects of the sources (at most about `limit` of them)."""
    report = Report()
    for path in sources(paths):
        module = compile_file(path)
        if module is None:
            continue
        report.files += 1
        for code in walk_code(module):
            report.codes += 1
            problem = round_trip_problem(code)
            if problem is not None:
                report.failures.append((str(path), code.co_qualname, problem))
        if limit is not None and report.codes >= limit:
            break
    return report


def main(arguments: list[str]) -> int:
    """Print counts and failures; 1 if there are any."""
    start = time.perf_counter()
    report = check_sources(map(Path, arguments))
    for path, function, problem in report.failures[:50]:
        print(f"{path}: {function}: {problem}")
    seconds = time.perf_counter() - start
    print(
        f"CPython {platform.python_version()}: {report.codes} code objects of {report.files} files, "
        f"{len(report.failures)} failures, {seconds:.0f} s"
    )
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
