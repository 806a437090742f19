"""Programs as text, in the language of newer Pythons than the oldest supported, each skipped below its first Python."""

from __future__ import annotations

import io
import itertools
import linecache
import typing
from contextlib import redirect_stdout
from types import FunctionType
from typing import Any

import pytest
import torch
from driver import Compiled, compiled, same

import framesmith_frames as frames
from framesmith_bytecode.cpython.running import TABLE
from framesmith_bytecode.cpython.version_table import TABLES

_numbers = itertools.count()
#: Conditions for an end, asked of Python.
CONDITIONS = {
    "where annotations are deferred": hasattr(FunctionType, "__annotate__"),
    "where lazy types show their functions": hasattr(getattr(typing, "TypeAliasType", None), "evaluate_value"),
}


#: A version of Python -> how a title names it.
VERSIONS = {version: f"{version[0]}.{version[1]}" for version in TABLES}
LATER = {name for version, name in VERSIONS.items() if version > TABLE.version}


def _parts(programs: str) -> list[tuple[str, list[str], str]]:
    """Return the title of each program, what its brackets say, in parts, and its text."""
    found = []
    for part in ("\n" + programs).split("\n# ")[1:]:
        line, _, text = part.partition("\n")
        title, _, said = line.removesuffix("]").partition(" [")
        found.append((title, said.split("; ") if said else [], text))
    return found


def _param(title: str, first: list[str], *values: Any) -> Any:
    """Return a test parameter that is skipped below the program's first Python."""
    wrong = [name for name in first if name not in VERSIONS.values()]
    if wrong or len(first) > 1:
        raise ValueError(f"{title}: {first} is no version of Python")
    skip = [pytest.mark.skip(f"begins with Python {name}") for name in first if name in LATER]
    return pytest.param(*values, id=title, marks=skip)


def titled(programs: str) -> list[Any]:
    """Return test parameters: the programs of a text, each after a line `# title` at its start or after a blank one.

    `# title [3.14]`: the program's first Python, below which the test is skipped.
    """
    return [_param(title, said, text) for title, said, text in _parts(programs)]


def titled_with_end(programs: str) -> list[Any]:
    """Return test parameters: programs, each with the end that its title names: `# title [whole]`.

    `whole`: one graph, also with `fullgraph`; `raises`: the exception leaves the function; else the kinds of breaks.
    With one of `CONDITIONS` after a `;`, the end is compared where it holds. A version after the last `;` is the
    program's first Python, below which the test is skipped.
    """
    found = []
    for title, (words, *rest), text in _parts(programs):
        holds = all(CONDITIONS[name] for name in rest if name in CONDITIONS)
        end = frozenset(words.split(", ")) if holds else None
        found.append(_param(title, [name for name in rest if name not in CONDITIONS], text, end))
    return found


def load(text: str) -> Any:
    """Return the `fn` of a program in a fresh module."""
    name = f"<program {next(_numbers)}>"
    code = compile(text, name, "exec", dont_inherit=True)
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    namespace: dict[str, Any] = {"__name__": "program", "torch": torch}
    exec(code, namespace)
    return namespace["fn"]


def run(fn: Any, calls: int) -> list[tuple[Any, str]]:
    """Return the result and the output of each call."""
    found = []
    for call in range(calls):
        printed = io.StringIO()
        torch.manual_seed(call)
        with redirect_stdout(printed):
            try:
                result: Any = fn(torch.arange(4.0) + call)
            except Exception as error:
                result = type(error), error.args
        found.append((result, printed.getvalue()))
    return found


def check_program(text: str, calls: int = 3, **options: Any) -> Compiled:
    """Run a program's `fn(x)` compiled and in eager mode, each in a fresh module; they agree in all they return."""
    frames.reset()
    expected = run(load(text), calls)
    subject = compiled(load(text), **options)
    found = run(subject, calls)
    assert same(found, expected), f"compiled {found}, eager {expected}"
    assert subject.events, "the hook saw no frame"
    assert not subject.of_kind("error"), subject.of_kind("error")
    return subject


def end_of(subject: Compiled) -> frozenset[str]:
    """Return how a program's graphs have ended, in the words of `titled_with_end`."""
    kinds = {event.broken.kind.id for event in subject.of_kind("break") if event.broken is not None}
    if kinds:
        return frozenset(kinds)
    return frozenset({"raises"}) if subject.of_kind("run-once") else frozenset({"whole"})


def check_program_and_end(text: str, end: frozenset[str] | None) -> None:
    """Check a program, and how its graphs end; a whole one also where breaks and eager calls are errors."""
    subject = check_program(text)
    assert end is None or end_of(subject) == end
    if end == {"whole"}:
        assert len(check_program(text, fullgraph=True).of_kind("entry")) == len(subject.of_kind("entry")) > 0
