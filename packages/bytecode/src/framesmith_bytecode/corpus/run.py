"""Round-trips every code object of Python sources: `python -m framesmith_bytecode.corpus [DIRECTORY...]`.

Without a directory: of the standard library and of every package installed in the running environment.
"""

from __future__ import annotations

import platform
import sys
import sysconfig
import time
import warnings
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Final

from framesmith_bytecode.corpus.round_trip import round_trip_problem
from framesmith_bytecode.nested import walk_code


def sources(paths: Iterable[Path], skip: Collection[str] = ()) -> Iterator[Path]:
    """All Python files among and below the paths; not below the directories of the names in `skip`."""
    for path in paths:
        if path.is_dir():
            for found in sorted(path.rglob("*.py")):
                if not any(part in skip for part in found.relative_to(path).parts):
                    yield found
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
    """Counts of a run; `invalid` files are not valid for this Python, `failures` are (file, function, problem)."""

    files: int = 0
    codes: int = 0
    invalid: int = 0
    failures: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, other: Report) -> None:
        """Add another run's counts to these."""
        self.files += other.files
        self.codes += other.codes
        self.invalid += other.invalid
        self.failures += other.failures

    def __str__(self) -> str:
        invalid = f" ({self.invalid} more are no valid Python here)" if self.invalid else ""
        return f"{self.codes:,} code objects of {self.files:,} files{invalid}, {len(self.failures)} failures"


def check_sources(paths: Iterable[Path], limit: int | None = None, skip: Collection[str] = ()) -> Report:
    """Round-trip all code objects of the sources (at most about `limit` of them)."""
    report = Report()
    for path in sources(paths, skip):
        module = compile_file(path)
        if module is None:
            report.invalid += 1
            continue
        report.files += 1
        for code in walk_code(module):
            report.codes += 1
            problem = _problem_or_crash(code)
            if problem is not None:
                report.failures.append((str(path), code.co_qualname, problem))
        if limit is not None and report.codes >= limit:
            break
    return report


def _problem_or_crash(code: CodeType) -> str | None:
    try:
        return round_trip_problem(code)
    except Exception as error:  # one more failure, and the count goes on
        return f"{type(error).__name__}: {error}"


#: Directories of installed packages; below the standard library they belong to other environments or are listed as
#: well.
INSTALLED: Final = frozenset(("site-packages", "dist-packages"))


def environment() -> dict[str, Path]:
    """Directories of the running environment: the standard library and packages, installed or on `sys.path`."""
    paths = sysconfig.get_paths()
    found: dict[Path, str] = {}
    for key, name in (("stdlib", "standard library"), ("purelib", "installed"), ("platlib", "installed (platform)")):
        found.setdefault(Path(paths[key]).resolve(), name)
    added = [Path(entry).resolve() for entry in sys.path if Path(entry).name in INSTALLED]
    for number, path in enumerate(path for path in dict.fromkeys(added) if path not in found):
        found[path] = f"added to the path ({number})"
    return {name: path for path, name in found.items()}


def check_environment() -> Report:
    """Round-trip all code objects of `environment()`, with a line for each directory."""
    total = Report()
    for name, path in environment().items():
        start = time.perf_counter()
        report = check_sources([path], skip=INSTALLED)
        print(f"{name}: {report}, {time.perf_counter() - start:.0f} s", flush=True)
        total.add(report)
    return total


def main(arguments: list[str]) -> int:
    """Print counts and failures; 1 if there are any."""
    start = time.perf_counter()
    report = check_sources(map(Path, arguments)) if arguments else check_environment()
    for path, function, problem in report.failures[:50]:
        print(f"{path}: {function}: {problem}")
    print(f"CPython {platform.python_version()}: {report}, {time.perf_counter() - start:.0f} s")
    return 1 if report.failures else 0
