"""Programs as text, in the language of newer Pythons than the oldest supported: those that do not parse are skipped."""

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

_numbers = itertools.count()
#: Conditions for an end, asked of Python.
CONDITIONS = {
    "where annotations are deferred": hasattr(FunctionType, "__annotate__"),
    "where lazy types show their functions": hasattr(getattr(typing, "TypeAliasType", None), "evaluate_value"),
}


def titled(programs: str) -> list[Any]:
    """Return test parameters: the programs of a text, each after a line `# title` at its start or after a blank one."""
    parts = ("\n" + programs).split("\n# ")[1:]
    return [pytest.param(text, id=title) for title, _, text in (part.partition("\n") for part in parts)]


def titled_with_end(programs: str) -> list[Any]:
    """Return test parameters: programs, each with the end that its title names: `# title [whole]`.

    `whole`: one graph, also with `fullgraph`; `raises`: the exception leaves the function; else the kinds of breaks.
    With one of `CONDITIONS` after a `;`, the end is compared where it holds.
    """
    found = []
    for given in titled(programs):
        title, _, ending = str(given.id).removesuffix("]").rpartition(" [")
        words, _, condition = ending.partition("; ")
        end = frozenset(words.split(", ")) if not condition or CONDITIONS[condition] else None
        found.append(pytest.param(*given.values, end, id=title))
    return found


def load(text: str) -> Any:
    """Return the `fn` of a program in a fresh module; the test is skipped where Python cannot parse it."""
    name = f"<program {next(_numbers)}>"
    try:
        code = compile(text, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        pytest.skip(f"this Python does not parse it: {error}")
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    namespace: dict[str, Any] = {"__name__": "program", "torch": torch}
    try:
        exec(code, namespace)
    except (NameError, ImportError) as error:
        pytest.skip(f"this Python cannot run it: {error}")
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
