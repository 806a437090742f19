"""Locations in the user's program, with their callers, and the location of this thread's trace."""

from __future__ import annotations

import functools
import linecache
import os
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

OWN_PACKAGES: Final = frozenset({
    "framesmith_bytecode", "framesmith_frames", "framesmith_guards", "framesmith_sideeffects", "framesmith_aten",
    "framesmith_dynamo", "framesmith_aot", "framesmith_autograd_compiler", "framesmith_backends", "framesmith",
})  # fmt: skip


#: `Location.where`, in a text.
_WHERE: Final = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.MULTILINE)


class Location:
    """A line of a file, in a function, and the location of its call (`outer`); its text is made on demand.

    `column`: the offset in bytes of the instruction's text in the line, if known.
    """

    __slots__ = ("column", "filename", "function", "lineno", "outer")

    def __init__(
        self, filename: str, lineno: int, function: str, outer: Location | None = None, column: int | None = None
    ) -> None:
        self.column = column
        self.filename = filename
        self.lineno = lineno
        self.function = function
        self.outer = outer

    def chain(self) -> Iterator[Location]:
        """Yield this location, its caller, and so on."""
        at: Location | None = self
        while at is not None:
            yield at
            at = at.outer

    @property
    def line(self) -> str:
        """The line's text, stripped; empty where the file cannot be read."""
        return linecache.getline(self.filename, self.lineno).strip()

    @property
    def where(self) -> str:
        """File, line and function, as in a traceback."""
        return f'File "{self.filename}", line {self.lineno}, in {self.function}'

    @property
    def stack_trace(self) -> str:
        """The stack as Python's tracebacks print it, innermost last."""
        return self.stack_text({})

    def stack_text(self, known: dict[Location, str]) -> str:
        """Return `stack_trace`; `known` holds parts shared with other locations, and is extended.

        For thousands of locations at once: none of them stores text.
        """
        found = known.get(self)
        if found is None:
            above = "" if self.outer is None else self.outer.stack_text(known)
            line = self.line
            found = known[self] = f"{above}  {self.where}\n" + (f"    {line}\n" if line else "")
        return found

    @classmethod
    def parse(cls, stack_trace: str) -> Location | None:
        """Return the location with such a `stack_trace`; None where the text names no file."""
        found: Location | None = None
        for filename, lineno, function in _WHERE.findall(stack_trace):
            found = cls(filename, int(lineno), function, found)
        return found

    def summary(self) -> traceback.StackSummary:
        """Return the stack as entries of a traceback, innermost last."""
        frames = [traceback.FrameSummary(at.filename, at.lineno, at.function, lookup_line=False) for at in self.chain()]
        return traceback.StackSummary.from_list(frames[::-1])

    @property
    def in_user_code(self) -> Location:
        """Return the innermost location outside of torch and Framesmith; else the outermost one."""
        libraries = _libraries()
        outermost = self
        for at in self.chain():
            if not at.filename.startswith(libraries):
                return at
            outermost = at
        return outermost

    def __str__(self) -> str:
        line = self.line
        return f"{self.where}: {line}" if line else self.where


@contextmanager
def lines_forgotten() -> Iterator[None]:
    """Drop, at the end, source files that were read meanwhile: `linecache` stores whole files."""
    before = {*linecache.cache}
    try:
        yield
    finally:
        for name in {*linecache.cache} - before:
            entry = linecache.cache.get(name, ())
            if len(entry) == 4 and entry[1] is not None:  # of a file, which can be read again, with the time of it
                linecache.cache.pop(name, None)


def warn_user(message: Warning) -> None:
    """Warn at the current line of code outside of torch and Framesmith."""
    libraries = _libraries()
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(libraries):
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    module = frame.f_globals.get("__name__")
    line = frame.f_lineno or frame.f_code.co_firstlineno  # compiled code has instructions without a line
    warnings.warn_explicit(message, type(message), frame.f_code.co_filename, line, module, registry)


def _libraries() -> tuple[str, ...]:
    return _library_folders(len(sys.modules))


@functools.lru_cache(maxsize=1)
def _library_folders(loaded: int) -> tuple[str, ...]:
    """Return the folders of torch's and Framesmith's loaded packages, searched again when more modules are loaded."""
    packages = [name for name in list(sys.modules) if name == "torch" or name in OWN_PACKAGES]
    found = (getattr(sys.modules.get(name), "__file__", None) for name in packages)
    return tuple(os.path.dirname(os.path.abspath(file)) + os.sep for file in found if file)


def is_own(module: str) -> bool:
    """Whether the module is one of these packages'. Their generated code names one of them in its globals."""
    return module.partition(".")[0] in OWN_PACKAGES


class _Local(threading.local):
    locate: Callable[[], Location | None] | None = None


_LOCAL = _Local()


def current_location() -> Location | None:
    """Return the location of this thread's trace, or None."""
    return None if _LOCAL.locate is None else _LOCAL.locate()


@contextmanager
def located(locate: Callable[[], Location | None] | None) -> Iterator[None]:
    """Let `locate` return this thread's location for a while; exceptions that leave record it."""
    previous = _LOCAL.locate
    _LOCAL.locate = locate
    try:
        yield
    except Exception as error:
        note_location(error, current_location())
        raise
    finally:
        _LOCAL.locate = previous


def note_location(error: BaseException, location: Location | None) -> None:
    """Record on an exception its location in the user's program (`user_location`), unless it has one."""
    if location is not None and location_of(error) is None:
        error.user_location = location  # type: ignore[attr-defined]


def location_of(error: BaseException) -> Location | None:
    """Return an exception's location in the user's program, if `note_location` recorded one."""
    return getattr(error, "user_location", None)
