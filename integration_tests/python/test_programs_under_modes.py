"""Random programs, each called under a mode drawn for it: 40 in every run, 1,000 with `FRAMESMITH_LONG=1`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import framesmith
from integration_tests.harness.modes import MODES, WHOLE, outcome, same
from integration_tests.harness.sweeps import LONG

PROGRAMS = 1000 if LONG else 40

#: Statements that make `{new}` out of `{a}` and `{b}`, all of shape [2, 3] and of moderate size.
STATEMENTS = (
    "{new} = torch.sin({a}) + {b}",
    "{new} = torch.tanh({a} * {b})",
    "{new} = F.softmax({a}, -1)",
    "{new} = F.layer_norm({a} + {b}, (3,))",
    "{new} = torch.sigmoid({a} @ {b}.t()) @ {a}",
    "{new} = {a}.t().contiguous().t() - {b}",
    "{new} = torch.cat([{a}[:1], {b}[1:]])",
    "{new} = torch.where({a} > 0, {a}, {b})",
    "{new} = {a}.sum(0, keepdim=True).expand(2, 3).cos()",
    "{new} = {a}[[1, 0]]",
    "{new} = F.dropout({a}, 0.5)",
    "{new} = {a} * 1\n{new}.add_({b})",
    "{new} = {a} * 1\n{new}[0] = 0.5",
    "{new} = {a} * 1\nF.relu({new}, inplace=True)",
    "{new} = {a} * 1\n{new}[:, 1].mul_(2)",
    "with torch.no_grad():\n    {new} = {a}.sin()",
    "with torch.enable_grad():\n    {new} = {a}.sin() * {b}",
    "{new} = {a} * {b}.detach()",
    "held = {{'a': {a}, 'b': [{b}]}}\n{new} = held['a'] + held['b'][0]",
    "{new} = (lambda t: t * {b})({a})",
    "print(end='')\n{new} = {a}",
    "{new} = sum([{a}, {b}, {a}.cos()])",
    "{new} = {a}.double().sin().float()",
)


def source(choose: random.Random) -> str:
    """The text of a function of one tensor."""
    names, lines = ["x"], []
    for index in range(choose.randint(2, 7)):
        new = f"v{index}"
        statement = choose.choice(STATEMENTS).format(new=new, a=choose.choice(names), b=choose.choice(names))
        lines += statement.split("\n")
        names.append(new)
    lines.append(f"return {names[-1]} + {choose.choice(names)} * 0.5")
    return "def program(x):\n" + "".join(f"    {line}\n" for line in lines)


def made(text: str) -> Callable[..., Any]:
    """A new function of this text."""
    names: dict[str, Any] = {"torch": torch, "F": F}
    exec(text, names)
    found: Callable[..., Any] = names["program"]
    return found


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(PROGRAMS // 10))
def test_a_random_program_under_a_mode(seed: int) -> None:
    choose = random.Random(seed)
    for _ in range(10):
        text, name = source(choose), choose.choice(sorted(MODES.keys() - WHOLE))
        if name == "threads" and "dropout" in text:
            continue  # which of them draws first is chance
        plain, compiled = made(text), framesmith.compile(made(text), strict=True)
        for step in range(2):
            x = torch.linspace(-1, 1, 6).reshape(2, 3) * (1 + step)
            wanted, found = outcome(MODES[name], plain, x), outcome(MODES[name], compiled, x)
            assert same(wanted, found), (name, text, wanted, found)
            wanted, found = outcome(called, plain, x), outcome(called, compiled, x)
            assert same(wanted, found), (f"after {name}", text, wanted, found)
    framesmith.reset()


def called(run: Callable[..., Any], x: torch.Tensor) -> Any:
    return run(x)
