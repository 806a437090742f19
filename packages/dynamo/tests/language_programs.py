"""Programs as text, in the language of newer Pythons than the oldest supported: those that do not parse are skipped."""

from __future__ import annotations

import io
import itertools
import linecache
from contextlib import redirect_stdout
from typing import Any

import pytest
import torch
from driver import Compiled, compiled, same

import framesmith_frames as frames

_numbers = itertools.count()


def titled(programs: str) -> list[Any]:
    """Return test parameters: the programs of a text, each after a line `# title` at its start or after a blank one."""
    parts = ("\n" + programs).split("\n# ")[1:]
    return [pytest.param(text, id=title) for title, _, text in (part.partition("\n") for part in parts)]


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


def check_program(text: str, calls: int = 3) -> Compiled:
    """Run a program's `fn(x)` compiled and in eager mode, each in a fresh module; they agree in all they return."""
    frames.reset()
    expected = run(load(text), calls)
    subject = compiled(load(text))
    found = run(subject, calls)
    assert same(found, expected), f"compiled {found}, eager {expected}"
    assert subject.events, "the hook saw no frame"
    return subject
