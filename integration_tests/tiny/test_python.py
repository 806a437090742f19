"""The language: breaks, side effects, loops, exceptions and guards, each once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import framesmith

pytestmark = pytest.mark.usefixtures("fresh")


def compiled(fn: Any) -> Any:
    return framesmith.compile(fn, backend="eager")


def test_one_graph() -> None:
    f = compiled(lambda x, y: torch.sin(x) * y + 1)
    x, y = torch.linspace(0, 1, 6), torch.ones(6)
    torch.testing.assert_close(f(x, y), torch.sin(x) * y + 1)
    counts = framesmith.stats()
    assert (counts["graphs"], counts["breaks"]) == (1, 0)


def test_a_graph_break_and_its_continuation(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        print("between")
        return y * 2

    assert torch.equal(compiled(f)(torch.ones(3)), torch.full((3,), 4.0))
    assert capsys.readouterr().out == "between\n"
    assert (framesmith.stats()["graphs"], framesmith.stats()["breaks"]) == (2, 1)


def test_side_effects_happen_once() -> None:
    def f(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
        log.append(x.shape[0])
        return x * len(log)

    g, log = compiled(f), []  # type: ignore[var-annotated]
    assert torch.equal(g(torch.ones(2), log), torch.ones(2))
    assert torch.equal(g(torch.ones(2), log), torch.full((2,), 2.0)) and log == [2, 2]


def test_a_guard_that_fails_compiles_again() -> None:
    f = compiled(lambda x, flag: x + 1 if flag else x - 1)
    assert f(torch.zeros(1), True).item() == 1 and f(torch.zeros(1), False).item() == -1
    assert framesmith.stats()["frames_compiled"] == 2


def test_exceptions_are_the_users() -> None:
    def f(x: torch.Tensor, table: dict[str, int]) -> torch.Tensor:
        return x * table["missing"]

    with pytest.raises(KeyError, match="missing"):
        compiled(f)(torch.ones(2), {})
