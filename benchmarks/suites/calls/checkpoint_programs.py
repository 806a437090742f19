"""Programs with activation checkpoints: graphs and breaks in each use, beside torch.compile's; the time of a step."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

import framesmith
from benchmarks.harness.candidates import available, wrap
from benchmarks.harness.graph_counts import breaks_of, counted, forget, print_graphs
from benchmarks.harness.measuring import ROUNDS, measure_isolated
from benchmarks.harness.registry import matching
from benchmarks.harness.summary import print_summary
from benchmarks.harness.timing import Row, Step
from benchmarks.models.checkpoint_programs import PROGRAMS, WIDTH, Net
from benchmarks.models.selection import Selection

#: Rows and width of what is timed.
TIMED_ROWS, TIMED_WIDTH = 256, 64


@dataclass(frozen=True)
class Case:
    """A program, by its name."""

    name: str
    kind: str = "checkpoint"


@dataclass(frozen=True)
class Use:
    """A use of a program: the rows of its calls, whether they train, and which call's body raises."""

    sizes: tuple[int, ...]
    training: bool = True
    dynamic: bool = False
    failing: int | None = None


CASES = tuple(Case(name) for name in PROGRAMS)
USES = {
    "inference": Use((8,), training=False),
    "training": Use((8,)),
    "dynamic": Use((8, 6, 5), dynamic=True),
    "second call": Use((8, 8)),
    "error inside": Use((8, 8, 8), failing=1),
}


def net_of(name: str, width: int = WIDTH) -> Net:
    """The program's net; the same numbers each time."""
    torch.manual_seed(0)
    return Net(PROGRAMS[name], width)


def step(net: nn.Module, call: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    """The result of a call, and in training all gradients."""
    if not net.training:
        with torch.no_grad():
            return [call(x)]
    net.zero_grad()
    x.grad = None
    result = call(x)
    result.float().square().sum().backward()
    return [result.detach(), *(one.grad for one in (x, *net.parameters()) if one.grad is not None)]


def outcomes(net: Net, call: Callable[[torch.Tensor], torch.Tensor], use: Use) -> list[Any]:
    """Return what each call of a use gives or raises, and random numbers behind it."""
    found: list[Any] = []
    net.train(use.training)
    for at, size in enumerate(use.sizes):
        torch.manual_seed(at)
        x = torch.randn(size, WIDTH, requires_grad=use.training)
        net.blocks[-1].fails = at == use.failing  # type: ignore[assignment]
        try:
            found.append(step(net, call, x))
        except Exception as error:  # the program's, or a compiler's own
            found.append(f"{type(error).__name__}: {error}")
        found.append(torch.rand(2))
    return found


def graphs_of(candidate: str, name: str, use: Use) -> str:
    """Return a candidate's graphs and breaks, and a star where results differ from eager mode's.

    torch.compile's graphs run as captured, operator by operator.
    """
    forget()
    expected_net, net = net_of(name), net_of(name)
    settings: dict[str, Any] = {"dynamic": True} if use.dynamic else {}
    captured: list[Any] = []
    if candidate == "framesmith":
        call: Any = framesmith.compile(net, **settings)
    else:
        call, captured = counted(candidate, net, **settings)
    found = outcomes(net, call, use)
    graphs = len(captured) or int(framesmith.stats()["graphs"])
    near = {"rtol": 2e-2, "atol": 5e-2} if "autocast" in name else {"rtol": 1e-4, "atol": 1e-5}
    equal = are_equal(found, outcomes(expected_net, expected_net, use), near)
    return f"{graphs}, {breaks_of(candidate)}{'' if equal else ' *'}"


def are_equal(found: list[Any], expected: list[Any], near: dict[str, float]) -> bool:
    """Whether calls gave or raised the same."""
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, str) or isinstance(other, str):
            if one != other:
                return False
            continue
        try:
            torch.testing.assert_close(one, other, **near)
        except AssertionError:
            return False
    return True


def prepare(name: str, training: bool, candidate: str) -> Step:
    """A candidate's step of a program, called once so that it is compiled."""
    warnings.simplefilter("ignore")
    net = net_of(name, TIMED_WIDTH).train(training)
    x = torch.randn(TIMED_ROWS, TIMED_WIDTH, requires_grad=training)
    made = partial(step, net, wrap(candidate, net), x)
    made()
    return made


def run(selection: Selection | None = None) -> list[Row]:
    """Print the table of graphs; return the time of steps of each program."""
    selection = selection or Selection()
    cases = matching(CASES, selection.only, "program")
    names = selection.among(available())
    rows: list[Row] = []
    print_graphs(__name__, [one.name for one in cases], USES)
    for case in cases:
        for kind in selection.modes:
            title, training, rounds = f"{case.name}, {kind}", kind == "training", selection.rounds_or(ROUNDS)
            found = measure_isolated(title, names, prepare, case.name, training, rounds=rounds)
            selection.keep(found)
            rows += found
    print_summary(rows)
    return rows
