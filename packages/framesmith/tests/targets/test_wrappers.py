"""Compiled functions and modules, seen from outside."""

import copy
import functools
import inspect
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import framesmith
import framesmith_frames
from framesmith.targets import wrappers
from framesmith.targets.wrappers import CompiledModule, compile_callable, compile_module, original_of
from framesmith_frames import SKIP, FrameInfo

asked: list[str] = []


def callback(frame: FrameInfo) -> SKIP:
    """Notes which functions the hook asks about."""
    asked.append(frame.code.co_name)
    return SKIP("seen")


class Net(nn.Module):
    """A module with a method of its own that calls the module."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return self(self(x))


def restore(module: nn.Module) -> nn.Module:
    return compile_module(module, callback, restore)


@pytest.fixture
def module() -> nn.Module:
    asked.clear()
    framesmith_frames.reset()
    return Net()


def test_calls_run_active(module: nn.Module) -> None:
    compiled = restore(module)
    x = torch.randn(1, 2)
    assert torch.equal(compiled(x), module(x))
    assert asked[0] == "__call__" and asked.count("forward") == 2  # Net's and Linear's
    framesmith_frames.reset()
    asked.clear()
    assert torch.equal(compiled.forward(x), module(x))
    assert "__call__" not in asked and asked.count("forward") == 2
    framesmith_frames.reset()
    asked.clear()
    compiled.twice(x)
    assert asked[0] == "__call__"


def test_forward_is_made_once_for_each_of_the_original(module: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def noting(target: Any, by: Any) -> Any:
        made.append(target)
        return real(target, by)

    real = wrappers.compiled_function
    monkeypatch.setattr(wrappers, "compiled_function", noting)
    x = torch.randn(1, 2)
    compiled = restore(module)
    made.clear()
    for _ in range(3):
        assert torch.equal(compiled.forward(x), module(x))
    assert made == [Net.forward]
    monkeypatch.setattr(Net, "forward", lambda self, x: self.linear(x) - 1)
    for _ in range(2):
        assert torch.equal(compiled.forward(x), module.linear(x) - 1)
    assert made[1:] == [Net.forward]


def test_it_is_the_original_from_outside(module: nn.Module) -> None:
    compiled = restore(module)
    assert isinstance(compiled, Net) and isinstance(compiled, CompiledModule)
    assert list(compiled.state_dict()) == ["linear.weight", "linear.bias"]
    assert repr(compiled) == repr(module)
    assert original_of(compiled) is module and original_of(module) is module


def test_changes_show_on_both_sides(module: nn.Module) -> None:
    compiled = restore(module)
    compiled.scale = 3.0
    assert module.scale == 3.0
    module.eval()
    assert compiled.training is False
    compiled.extra = nn.Linear(2, 1)
    assert "extra.weight" in module.state_dict()
    compiled.load_state_dict({k: torch.zeros_like(v) for k, v in module.state_dict().items()})
    assert float(module.linear.weight.abs().sum()) == 0
    del compiled.extra
    assert not hasattr(module, "extra")


def test_copies_and_pickles_are_compiled_again(module: nn.Module) -> None:
    compiled = restore(module)
    for again in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert isinstance(again, CompiledModule)
        assert original_of(again) is not module
        assert torch.equal(again.linear.weight, module.linear.weight)


def test_a_compiled_function_looks_like_the_function() -> None:
    def f(x: int, y: int = 2) -> int:
        """Adds."""
        return x + y

    f.note = "kept"  # type: ignore[attr-defined]
    asked = []

    def callback(frame: FrameInfo) -> SKIP:
        asked.append(frame.code)
        return SKIP("seen")

    compiled = compile_callable(f, callback)
    assert compiled(1) == 3 and asked == [f.__code__]
    assert (compiled.__name__, compiled.__doc__, compiled.note, compiled.__wrapped__) == ("f", "Adds.", "kept", f)
    assert inspect.signature(compiled) == inspect.signature(f)
    partial = functools.partial(f, 1)
    assert compile_callable(partial, callback)(y=5) == 6


def test_a_compiled_method_leads_to_the_method() -> None:
    class Owner:
        def method(self, x: int) -> int:
            return x + 1

    owner = Owner()
    compiled = framesmith.compile(owner.method)
    assert original_of(compiled) == owner.method
    assert framesmith.explain(compiled, 1).name == Owner.method.__qualname__


def test_a_view_is_no_new_module() -> None:
    class Counted(Net):
        made = 0

        def __new__(cls, size: int) -> "Counted":
            cls.made += 1
            return super().__new__(cls)

        def __init__(self, size: int) -> None:
            super().__init__()

    module = Counted(3)
    x = torch.randn(1, 2)
    assert torch.equal(restore(module)(x), module(x)) and Counted.made == 1
