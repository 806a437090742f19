"""Compiled functions do under each mode what eager does, and never crash.

Each mode in half of the ways to meet a call; in long runs, `FRAMESMITH_LONG=1`, in all.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn as nn

import framesmith
from integration_tests.harness.modes import MODES, WHOLE, outcome, same
from integration_tests.harness.sweeps import in_turn


class Block(nn.Module):
    """A layer, an activation that modes see, and maybe a graph break."""

    def __init__(self, broken: bool) -> None:
        super().__init__()
        self.first, self.second, self.broken = nn.Linear(3, 4), nn.Linear(4, 3), broken

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.sin(self.first(x))
        if self.broken:
            print(end="")
        return self.second(h) * 2  # type: ignore[no-any-return]


def smooth(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x * 2) + x.cos()


def smooth_broken(x: torch.Tensor) -> torch.Tensor:
    y = torch.sin(x * 2)
    print(end="")
    return y + x.cos()


def target_of(kind: str, broken: bool) -> Any:
    if kind == "function":
        return smooth_broken if broken else smooth
    torch.manual_seed(0)
    return Block(broken)


@pytest.fixture(autouse=True)
def _quiet(recwarn: Any) -> Any:
    framesmith.reset()  # the cases share their code objects, whose entries are limited
    yield
    ours = [str(w.message) for w in recwarn if issubclass(w.category, framesmith.FramesmithWarning)]
    ours = [text for text in ours if "nothing of it is compiled" not in text]  # as is so, with most modes
    assert not ours, ours


#: The callee, whether its graph breaks, and whether it was called before: each half has both of each.
CALLED = (
    ("function", "whole", "cold"), ("module", "whole", "warm"), ("module", "broken", "cold"),
    ("function", "broken", "warm"), ("module", "whole", "cold"), ("function", "whole", "warm"),
    ("function", "broken", "cold"), ("module", "broken", "warm"),
)  # fmt: skip


@pytest.mark.sampled(11)
@pytest.mark.parametrize(
    ("name", "called"), in_turn(MODES, CALLED, each=4), ids=lambda one: one if isinstance(one, str) else "-".join(one)
)
def test_a_mode_around_a_call(name: str, called: tuple[str, str, str]) -> None:
    kind, broken, warm = called[0], called[1] == "broken", called[2] == "warm"
    around = MODES[name]
    x = torch.linspace(-1, 1, 6).reshape(2, 3)
    wanted = outcome(around, target_of(kind, broken), x)
    compiled = framesmith.compile(target_of(kind, broken))
    if warm:
        for _ in range(2):
            compiled(x)
            compiled(x.clone().requires_grad_())
    for _ in range(2):
        found = outcome(around, compiled, x)
        assert same(wanted, found) or (name in WHOLE and broken and isinstance(wanted, str)), (wanted, found)
    plain = outcome(lambda run, v: run(v), compiled, x)
    assert same(outcome(lambda run, v: run(v), target_of(kind, broken), x), plain)  # nothing of the mode stays


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(8))
def test_modes_one_after_the_other(seed: int) -> None:
    """A function and a module called plainly and under modes in any order."""
    choose = random.Random(seed)
    targets = [(kind, broken) for kind in ("function", "module") for broken in (False, True)]
    compiled = {key: framesmith.compile(target_of(*key)) for key in targets}
    for _ in range(25):
        key, name = choose.choice(targets), choose.choice(sorted(MODES.keys() - WHOLE))
        x = torch.linspace(-1, 1, 6).reshape(2, 3) * choose.choice((1, 2))
        wanted, found = outcome(MODES[name], target_of(*key), x), outcome(MODES[name], compiled[key], x)
        assert same(wanted, found), (key, name, wanted, found)


def made_inside(x: torch.Tensor) -> Any:
    with torch.device("meta") as device:
        made = torch.ones(3)
    return made, x + torch.ones(3), device


def broken_inside(x: torch.Tensor) -> Any:
    with torch.device("meta"):
        made = torch.ones(3)
        print(end="")
        also = made + torch.zeros(3)
    return also, x * 2


def left_by_an_error(x: torch.Tensor) -> Any:
    try:
        with torch.device("meta"):
            raise ValueError
    except ValueError:
        return torch.ones(3) + x


def a_module(x: torch.Tensor) -> Any:
    with torch.device("meta"):
        layer = nn.Linear(3, 3)
    return layer.weight.detach(), x + 1


@pytest.mark.parametrize("function", [made_inside, broken_inside, left_by_an_error, a_module])
def test_a_device_entered_inside_is_left_again(function: Any) -> None:
    compiled = framesmith.compile(function)
    for _ in range(2):
        x = torch.ones(3)
        expected, found = function(x), compiled(x)
        for one, other in zip(*((r if isinstance(r, tuple) else (r,)) for r in (found, expected)), strict=True):
            if isinstance(one, torch.Tensor):
                assert (one.device, one.shape) == (other.device, other.shape)
                assert one.is_meta or torch.equal(one, other)
            else:
                assert one == other
        assert torch.ones(1).device.type == "cpu" and torch._C._len_torch_function_stack() == 0
