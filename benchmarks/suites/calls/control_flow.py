"""Control flow and scans: graphs and breaks in each use, beside torch.compile's, and the time of a step.

In eager mode torch compiles each call of these functions for itself, with a backend that runs the graph as it is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops import map as mapped
from torch.utils._pytree import tree_leaves

from benchmarks.harness.candidates import available, wrap
from benchmarks.harness.graph_counts import breaks_of, counted, forget, print_graphs
from benchmarks.harness.measuring import ROUNDS, measure_isolated
from benchmarks.harness.registry import matching
from benchmarks.harness.summary import print_summary
from benchmarks.harness.timing import Row, Step
from benchmarks.models.selection import Selection

Tensor = torch.Tensor
Function = Callable[..., Any]
WIDTH, STATES = 64, 16
torch.manual_seed(0)
SMALL, LARGE = nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Linear(WIDTH, 256), nn.GELU(), nn.Linear(256, WIDTH))
CELL = nn.GRUCell(WIDTH, WIDTH)
DECAY = nn.Parameter(-torch.rand(WIDTH, STATES) - 0.5)
READ = nn.Parameter(torch.randn(WIDTH, 2 * STATES + 1) / 8)
PARAMETERS = [*SMALL.parameters(), *LARGE.parameters(), *CELL.parameters(), DECAY, READ]


class Failure(Exception):
    """The error inside of a body."""


class Switch:
    """Whether bodies raise."""

    on = False


def passed(x: Tensor) -> Tensor:
    """Return the tensor; called in a body of each program."""
    if Switch.on:
        raise Failure
    return x


def chosen_layer(x: Tensor) -> Any:
    """One of two layers, by the size of the input."""
    return torch.cond(x.abs().mean() > 10, lambda x: SMALL(x), lambda x: LARGE(passed(x)), (x,))


def nested_choices(x: Tensor) -> Any:
    """A choice in a branch, of pointwise operations."""

    def inner(x: Tensor) -> Tensor:
        return torch.cond(x.max() > 3, lambda x: x.tanh() * 2, lambda x: passed(x).sin(), (x,))

    return torch.cond(x.mean() > -1, inner, lambda x: x.relu(), (x * 2,)) + x


def early_exits(x: Tensor) -> Any:
    """Four layers, each left out where its input is small."""
    for _ in range(4):
        x = torch.cond(x.square().mean() > 0.01, lambda x: x + SMALL(passed(x)).tanh(), lambda x: x.clone(), (x,))
    return x


def fixed_point(x: Tensor) -> Any:
    """An iteration of a layer, until it has run eight times."""

    def body(at: Tensor, y: Tensor) -> Any:
        return at + 1, (SMALL(passed(y)) * 0.5 + x).tanh()

    return while_loop(lambda at, y: at < 8, body, (torch.tensor(0), x * 1))[1]


def square_roots(x: Tensor) -> Any:
    """Newton's iteration, until its step is small."""
    of = x.square() + 1

    def body(y: Tensor, change: Tensor) -> Any:
        new = (passed(y) + of / y) * 0.5
        return new, (new - y).detach().abs().max()

    return while_loop(lambda y, change: change > 1e-3, body, (of * 1, torch.tensor(1.0)))[0]


def moving_average(x: Tensor) -> Any:
    """A scan of pointwise steps."""

    def step(before: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        new = before * 0.9 + passed(a) * 0.1
        return new, new.sin()

    return scan(step, x[0] * 0, x)


def gated_cell(x: Tensor) -> Any:
    """A scan whose steps are a recurrent cell."""

    def step(hidden: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        new = CELL(passed(a).unsqueeze(0), hidden)
        return new, new.clone()

    return scan(step, x[:1] * 0, x)[1]


def sums_back(x: Tensor) -> Any:
    """Sums of what follows each element, by an associative scan."""
    return associative_scan(lambda one, other: one + passed(other), x, 0, reverse=True, combine_mode="generic")


def linear_recurrence(x: Tensor) -> Any:
    """`y = a * y + b` by an associative scan of pairs."""

    def join(one: Any, other: Any) -> Any:
        return one[0] * other[0], other[0] * passed(one[1]) + other[1]

    return associative_scan(join, (x.sigmoid(), x), 0, combine_mode="generic")[1]


def selective_scan(x: Tensor) -> Any:
    """Mamba's scan of a sequence: time steps, states of each channel, their sum."""
    read = x @ READ
    time = nn.functional.softplus(read[:, -1:])
    a = torch.exp(time.unsqueeze(-1) * DECAY)
    b = (time * x).unsqueeze(-1) * read[:, None, :STATES]

    def join(one: Any, other: Any) -> Any:
        return one[0] * other[0], other[0] * passed(one[1]) + other[1]

    states = associative_scan(join, (a, b), 0, combine_mode="generic")[1]
    return (states * read[:, None, STATES:-1]).sum(-1) + x


def mapped_rows(x: Tensor) -> Any:
    """A function of each row, with a captured tensor."""
    return mapped(lambda row, scale: (passed(row) * scale).softmax(0), x, x.mean())


def loop_of_choices(x: Tensor) -> Any:
    """A choice in each iteration of a loop."""

    def body(at: Tensor, y: Tensor) -> Any:
        return at + 1, torch.cond(y.sum() > 0, lambda y: (y - 0.1).sin(), lambda y: passed(y).cos() * 0.5, (y,))

    return while_loop(lambda at, y: at < 6, body, (torch.tensor(0), x * 1))[1]


@dataclass(frozen=True)
class Program:
    """A row of this suite: a function of a tensor of `rows` x `WIDTH`."""

    function: Callable[[Tensor], Any]
    kind: str
    rows: int = 64

    @property
    def name(self) -> str:
        return self.function.__name__


PROGRAMS = (
    Program(chosen_layer, "branches"),
    Program(nested_choices, "branches"),
    Program(early_exits, "branches"),
    Program(fixed_point, "loops"),
    Program(square_roots, "loops"),
    Program(loop_of_choices, "loops"),
    Program(moving_average, "scans"),
    Program(gated_cell, "scans"),
    Program(sums_back, "scans"),
    Program(linear_recurrence, "scans"),
    Program(selective_scan, "scans", 128),
    Program(mapped_rows, "scans"),
)


@dataclass(frozen=True)
class Use:
    """A use of a program: the rows of its calls over those of the program, and whether gradients are asked for."""

    shares: tuple[float, ...]
    training: bool
    dynamic: bool = False
    fails: bool = False


USES = {
    "inference": Use((1,), False),
    "training": Use((1,), True),
    "dynamic": Use((1, 0.75, 0.625), True, True),
    "second call": Use((1, 1), True),
    "error inside": Use((1, 1), False, fails=True),
}


def step(function: Function, x: Tensor) -> list[Tensor]:
    """Return the results of a call, and the gradients of `x` and the parameters where there are some."""
    results = [one for one in tree_leaves(function(x)) if isinstance(one, Tensor)]
    roots = [one.square().mean() for one in results if one.requires_grad]
    if not roots:
        return results
    leaves = [one for one in (x, *PARAMETERS) if one.requires_grad]
    return results + [one for one in torch.autograd.grad(sum(roots), leaves, allow_unused=True) if one is not None]  # type: ignore[arg-type]


def graphs_of(candidate: str, name: str, use: Use) -> str:
    """Return how many graphs and breaks a candidate makes; or the error that it raises, or that its results raise here.

    An error inside of a body has to be that of eager mode, and a call after it to have its results.
    """
    [program] = matching(PROGRAMS, name, "program")
    forget()
    Switch.on = False
    compiled, graphs = counted(candidate, program.function, dynamic=use.dynamic or None)
    torch.manual_seed(0)
    for one in PARAMETERS:
        one.requires_grad_(use.training)
    error = ""
    try:
        for at, share in enumerate(use.shares):
            x = torch.randn(int(program.rows * share), WIDTH, requires_grad=use.training)
            if use.fails and at == 1:
                error = error_of(compiled, program, x)
            torch.testing.assert_close(step(compiled, x), step(program.function, x), rtol=1e-3, atol=1e-4)
    except Exception as failure:
        return f"raises {type(failure).__name__}"
    return error or f"{len(graphs)}, {breaks_of(candidate)}"


def error_of(compiled: Function, program: Program, x: Tensor) -> str:
    """Return whether the error inside of a body is that of eager mode."""
    found = []
    Switch.on = True
    for function in (compiled, program.function):
        try:
            function(x)
        except Exception as error:
            found.append(type(error).__name__)
    Switch.on = False
    return "as eager" if len(found) == 2 and found[0] == found[1] else " for ".join(found)


def prepare(program: str, kind: str, candidate: str) -> Step:
    """A candidate's step, called once and checked."""
    warnings.simplefilter("ignore")
    [found] = matching(PROGRAMS, program, "program")
    torch.manual_seed(0)
    for one in PARAMETERS:
        one.requires_grad_(kind == "training")
    x = torch.randn(found.rows, WIDTH, requires_grad=kind == "training")
    made = partial(step, wrap(candidate, found.function), x)
    torch.testing.assert_close(made(), step(found.function, x), rtol=1e-3, atol=1e-4)
    return made


def run(selection: Selection | None = None) -> list[Row]:
    """Print the table of graphs; return the time of a step of each program."""
    selection = selection or Selection()
    programs, rows = [one.name for one in matching(PROGRAMS, selection.only, "program")], list[Row]()
    print_graphs(__name__, programs, USES)
    names, rounds = selection.among(available()), selection.rounds_or(ROUNDS)
    for program in programs:
        for kind in selection.modes:
            found = measure_isolated(f"{program}, {kind}", names, prepare, program, kind, rounds=rounds)
            selection.keep(found)
            rows += found
    print_summary(rows)
    return rows
