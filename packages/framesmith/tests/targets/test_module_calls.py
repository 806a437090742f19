"""A compiled module's call is compiled as one piece, and honours what changes about the module afterwards."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import framesmith
import framesmith_frames

X = torch.arange(8.0).reshape(2, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.scale = 1.0

    def forward(self, x: torch.Tensor, twice: bool = False, *, shift: float = 0.0) -> torch.Tensor:
        x = self.drop(self.linear(x)) * self.scale + shift
        return x * 2 if twice else x


class Breaking(Net):
    def forward(self, x: torch.Tensor, twice: bool = False, *, shift: float = 0.0) -> torch.Tensor:
        x = self.linear(x)
        print(end="")  # breaks the graph
        return self.linear(x)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    framesmith.reset()
    yield
    framesmith.reset()


def same(compiled: nn.Module, module: nn.Module, *args: Any, **kwargs: Any) -> None:
    for seed in range(2):
        torch.manual_seed(seed)
        expected = module(*args, **kwargs)
        torch.manual_seed(seed)
        assert torch.equal(compiled(*args, **kwargs), expected)


def make(cls: type[nn.Module] = Net) -> tuple[nn.Module, nn.Module]:
    module = cls()
    return framesmith.compile(module, backend="eager"), module


def test_a_call_is_one_frame() -> None:
    compiled, module = make()
    same(compiled, module, X)
    assert framesmith.stats()["frames_seen"] == framesmith.stats()["frames_compiled"] == 1


def test_every_way_to_pass_arguments() -> None:
    compiled, module = make()
    same(compiled, module, X, True)
    same(compiled, module, x=X)
    same(compiled, module, X, twice=True, shift=3.0)
    with pytest.raises(TypeError, match="unexpected keyword"):
        compiled(X, other=4)
    with pytest.raises(TypeError, match="missing 1 required"):
        compiled()


def test_hooks_registered_later() -> None:
    compiled, module = make()
    same(compiled, module, X)
    for register in (
        lambda: module.register_forward_hook(lambda m, args, out: out + 1),
        lambda: compiled.register_forward_pre_hook(lambda m, args: (args[0] * 2,)),
        lambda: module.linear.register_forward_hook(lambda m, args, out: out * 3),
        lambda: nn.modules.module.register_module_forward_hook(lambda m, args, out: out - 1),
    ):
        handle = register()
        same(compiled, module, X)
        handle.remove()
        same(compiled, module, X)


def test_backward_hooks_fire() -> None:
    compiled, module = make()
    same(compiled, module, X)
    fired = []
    module.register_full_backward_hook(lambda m, inputs, outputs: fired.append(m))
    compiled(X.clone().requires_grad_()).sum().backward()
    assert fired == [module]


def test_forward_replaced_mode_and_attributes() -> None:
    compiled, module = make()
    same(compiled, module, X)
    module.eval()
    same(compiled, module, X)
    compiled.scale = 3.0
    same(compiled, module, X)
    module.forward = lambda x: x * 100  # type: ignore[method-assign, assignment]
    assert torch.equal(compiled(X), X * 100)
    del module.forward
    compiled.train()
    same(compiled, module, X)
    module.linear = nn.Linear(4, 2)
    same(compiled, module, X)


def test_a_class_with_its_own_call() -> None:
    class Called(Net):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return super().__call__(x) + 1

    compiled, module = make(Called)
    same(compiled, module, X)


def test_modules_of_one_class_do_not_share_entries() -> None:
    pairs = [make() for _ in range(10)]
    for compiled, module in pairs:
        same(compiled, module, X)
    assert framesmith.stats()["frames_compiled"] == 10  # more than one code object's limit
    assert framesmith.stats()["recompilations"] == 0


def test_a_break_inside_is_counted_once() -> None:
    compiled, module = make(Breaking)
    same(compiled, module, X)
    counted = framesmith.stats()
    assert counted["breaks"] == 1 and counted["graphs"] == 2 and counted["frames_skipped"] == 0
    strict = framesmith.compile(module, backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="fullgraph=True, but the graph breaks"):
        strict(X)


def test_inside_another_compiled_function_it_is_traced_through() -> None:
    compiled, module = make()
    module.eval()
    outer = framesmith.compile(lambda x: compiled(x) * 2, backend="eager", fullgraph=True)
    assert torch.equal(outer(X), module(X) * 2)
    inside = framesmith.compile(nn.Sequential(compiled, nn.ReLU()), backend="eager", fullgraph=True)
    assert torch.equal(inside(X), module(X).relu())


def test_errors_reach_the_caller_with_the_programs_frames() -> None:
    compiled, _ = make()
    with pytest.raises(RuntimeError) as raised:
        compiled(torch.ones(3, 3))
    names = [entry.name for entry in raised.traceback]
    assert "forward" in names


def test_from_outside_it_is_a_module() -> None:
    compiled, module = make()
    assert callable(compiled)
    assert inspect.signature(compiled) == inspect.signature(module)
    assert inspect.signature(type(compiled)) == inspect.signature(type(module))
    assert inspect.signature(compiled.forward) == inspect.signature(module.forward)
    assert framesmith_frames.get_callback() is None
    same(compiled, module, X)
    assert framesmith_frames.get_callback() is None
