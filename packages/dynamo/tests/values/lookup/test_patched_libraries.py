"""Trusted libraries that the program patches after a compile."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from driver import Compiled, compiled
from torch import nn

X = torch.arange(-2.0, 2.0)


def module_function(x: Any) -> Any:
    return F.relu(x)


def c_function(x: Any) -> Any:
    return torch.relu(x) + 1


def folded(x: Any) -> Any:
    return x * math.sqrt(4)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.act = nn.ReLU()

    def forward(self, x: Any) -> Any:
        return self.act(self.inner(x))


LAYER = Layer()


def module(x: Any) -> Any:
    return LAYER(x)


def double(*args: Any, **kwargs: Any) -> Any:
    return args[-1] * 2


#: name -> (program, where to patch, name there)
PATCHES: dict[str, tuple[Callable[..., Any], Any, str]] = {
    "a function of a module": (module_function, F, "relu"),
    "a C function": (c_function, torch, "relu"),
    "a folded function": (folded, math, "sqrt"),
    "a method": (module, nn.Linear, "forward"),
    "a global of a library's module": (module, F, "linear"),
    "a method of another layer": (module, nn.ReLU, "forward"),
    "calling a module": (module, nn.Module, "__call__"),
}


@pytest.mark.parametrize("name", PATCHES)
def test_a_patch_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, owner, attribute = PATCHES[name]
    subject = compiled(program)
    assert torch.equal(subject(X), program(X))
    with monkeypatch.context() as patch:
        patch.setattr(owner, attribute, double)
        expected = program(X)
        assert torch.equal(subject(X), expected)
        assert torch.equal(subject(X), expected)
    assert torch.equal(subject(X), program(X))


def test_unpatched_libraries_cause_no_recompile() -> None:
    subject = compiled(module)
    for _ in range(3):
        subject(X)
    assert len(subject.of_kind("entry")) == 1


def entries_of(subject: Compiled) -> list[str]:
    return [str(event.guards) for event in subject.of_kind("entry")]


def test_one_guard_for_all_layers() -> None:
    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))
    subject = compiled(lambda x: layers(x))
    subject(X)
    [text] = entries_of(subject)
    assert text.count("sys.modules['torch.nn.modules.linear'].__dict__['Linear'].__dict__['forward']\n") == 1
