"""One break is one entry, whoever meets it; functions that break and have many callers are compiled once.

Frames and graphs are at most those that torch.compile counts of the same programs (torch 2.13, `backend="eager"`).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import framesmith
from framesmith_frames import entries


def helper(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    print(end="")
    return y * 2


def caller(number: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function of its own code, as one that is written out."""
    names: dict[str, Any] = {"helper": helper}
    exec(f"def f{number}(x):\n    return helper(x) + {number}\n", names)
    made: Callable[[torch.Tensor], torch.Tensor] = names[f"f{number}"]
    return made


SIZED = [torch.ones(n) for n in (2, 3, 4, 5, 6)]
CALLERS = [caller(number) for number in range(20)]


def from_twenty_callers(x: torch.Tensor) -> torch.Tensor:
    for each in CALLERS:
        x = each(x)
    return x


def in_a_loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = helper(x)
    return x


def of_many_sizes(x: torch.Tensor) -> torch.Tensor:
    for each in SIZED:
        x = x + helper(each).sum()
    return x


def down(x: torch.Tensor, n: int) -> torch.Tensor:
    if n == 0:
        return x
    print(end="")
    return down(x + 1, n - 1) * 2


def down_to_a_leaf(x: torch.Tensor, n: int) -> torch.Tensor:
    if n == 0:
        print(end="")
        return x
    return down_to_a_leaf(x + 1, n - 1) * 2


def middle(x: torch.Tensor) -> torch.Tensor:
    return helper(x) * 2


def outer(x: torch.Tensor) -> torch.Tensor:
    return middle(x) - 1


def at_three_depths(x: torch.Tensor) -> torch.Tensor:
    return outer(x) + middle(x) + helper(x)


def sometimes(x: torch.Tensor, said: bool) -> torch.Tensor:
    if said:
        print(end="")
    return x * 2


class Layer(torch.nn.Module):
    """One of many of a class: instances differ in what `differs` says."""

    def __init__(self, at: int, differs: str) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.name = f"layer {at if 'name' in differs else 0}"
        self.scale = 1 / (at + 2 if "scale" in differs else 2)
        self.dilation = 2 ** (at % 5) if "dilation" in differs else 2
        self.dim = 8 * at + 16 if "dim" in differs else 16

    def say(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x) * self.scale
        print(self.name, end="")
        return y.repeat_interleave(self.dilation, 0)[: x.shape[0]]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.say(x) + x / self.dim


def layers(differs: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(Layer(at, differs) for at in range(12)))


X = torch.ones(2, 4)

#: Programs that break in one place, and torch.compile's frames and graphs.
PROGRAMS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "twenty callers": (from_twenty_callers, 43, 22),
    "a loop": (in_a_loop, 3, 2),
    "sizes": (of_many_sizes, 5, 4),
    "recursion": (lambda x: down(x, 6), 7, 5),
    "recursion to a leaf": (lambda x: down_to_a_leaf(x, 6), 6, 4),
    "depths": (at_three_depths, 10, 6),
    "sometimes": (lambda x: sometimes(sometimes(x, False), True) + sometimes(x, True), 5, 3),
    "equal layers": (layers(""), 9, 6),
    "names": (layers("name"), 9, 6),
    "scales": (layers("scale name"), 9, 6),
    "dilations": (layers("dilation name"), 14, 11),
    "dims": (layers("dim name"), 16, 12),
    "all": (layers("dilation dim scale name"), 20, 16),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_break_is_one_entry(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    framesmith.reset()
    program, frames, graphs = PROGRAMS[name]
    run = framesmith.compile(program, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            torch.testing.assert_close(run(X), program(X))
    stats = framesmith.stats()
    assert stats["breaks"] == 1 < stats["breaks_met"] and stats["recompile_limits"] == 0
    assert 0 < stats["frames_compiled"] <= frames and 0 < stats["graphs"] <= graphs, stats
    framesmith.reset()
    report = framesmith.explain(program, X)
    assert report.break_count == 1 < len(report.of_kind("break"))
    text = str(report)
    assert text.count("] break: ") == 1 and f"met {len(report.of_kind('break'))} times, also in: " in text


def test_a_function_of_twenty_callers_is_compiled_once() -> None:
    framesmith.reset()
    run = [framesmith.compile(each, backend="eager") for each in CALLERS]
    for each in run:
        each(X)
    assert len(entries(helper)) == 1


def two_on_a_line(x: torch.Tensor) -> torch.Tensor:
    print(end=""), print(end="")
    return x + 1


def two_kinds(x: torch.Tensor) -> torch.Tensor:
    def effect(x: torch.Tensor, function: Any, *args: Any) -> torch.Tensor:
        function(*args)
        return x + 1

    return effect(effect(x, print), warnings.warn, "said", PendingDeprecationWarning)


@pytest.mark.parametrize("program", [two_on_a_line, two_kinds], ids=lambda program: program.__name__)
def test_other_breaks_are_other_entries(program: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    framesmith.reset()
    torch.testing.assert_close(framesmith.compile(program, backend="eager")(X), program(X))
    assert framesmith.stats()["breaks"] == 2


def test_details_that_differ_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    def say(x: torch.Tensor, number: int) -> torch.Tensor:
        print(number, end="")
        return x + 1

    def program(x: torch.Tensor) -> torch.Tensor:
        return say(say(x, 1), 2)

    text = str(framesmith.explain(program, X))
    assert "1 break(s)" in text and "also: [print] print() is called: print(the constant 2" in text


def test_a_break_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for level, count in ((logging.INFO, 1), (logging.DEBUG, 22)):
        framesmith.reset()
        caplog.clear()
        with caplog.at_level(level, "framesmith.breaks"):
            framesmith.compile(from_twenty_callers, backend="eager")(X)
        assert len([one for one in caplog.records if one.getMessage().startswith("break: ")]) == count


def test_reset_forgets_breaks() -> None:
    for _ in range(2):
        framesmith.reset()
        assert framesmith.stats()["breaks"] == framesmith.stats()["breaks_met"] == 0
        framesmith.compile(in_a_loop, backend="eager")(X)
        assert framesmith.stats()["breaks"] == 1
