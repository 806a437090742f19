"""Tests of the rows of docs/torch-switches.md, by the names of the rows, and what they have in common."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo

import framesmith
from framesmith_dynamo import SwitchWarning

X = torch.tensor([1.0, 2.0, 3.0])

ROWS: dict[str, Callable[[], None]] = {}
#: The names that torch must have for a row: a name in torch.compiler, torch._dynamo, or its decorators.
NEEDS: dict[str, str] = {}


def row(name: str, needs: str | None = None) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register the test of a row; `needs` is what not all releases of torch have."""

    def add(test: Callable[[], None]) -> Callable[[], None]:
        assert name not in ROWS
        ROWS[name] = test
        if needs is not None:
            NEEDS[name] = needs
        return test

    return add


def graphs() -> int:
    """Return the number of compiled graphs."""
    return framesmith.stats()["graphs"]


def breaks() -> int:
    """Return the number of graph breaks."""
    return framesmith.stats()["breaks"]


def compiled(fn: Any, **options: Any) -> Any:
    """The function compiled, with what makes its graphs quickly; a failure of the compiler is an error."""
    return framesmith.compile(fn, **{"backend": "eager", "strict": True, **options})


def asks(x: torch.Tensor) -> torch.Tensor:
    """Return a result by which compiled code differs from eager."""
    return x.cos() if torch.compiler.is_compiling() else x.cos() * 100


def broken(x: torch.Tensor) -> torch.Tensor:
    """A function with a break."""
    y = x.sin()
    torch._dynamo.graph_break()
    return y + 1


def lengths(x: torch.Tensor, s: str) -> torch.Tensor:
    """A function that is compiled for each string."""
    return x + len(s)


def call_with_strings(fn: Any, count: int = 6) -> None:
    """Call it with so many strings."""
    for i in range(count):
        assert torch.equal(fn(X, "x" * i), X + i)


def sized(*sizes: int) -> list[torch.Tensor]:
    """Tensors of these sizes."""
    return [torch.ones(size) for size in sizes]


def check_reported(fn: Callable[[], Any], match: str) -> None:
    """It is said once, by name."""
    with pytest.warns(SwitchWarning, match=match) as reported:
        fn()
    assert sum(re.search(match, str(each.message)) is not None for each in reported) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", SwitchWarning)
        fn()


def run_python(command: str, **variables: str) -> str:
    """Return the output of a new interpreter."""
    environment = {**os.environ, **variables}
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
