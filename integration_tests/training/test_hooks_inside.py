"""Hooks that run in a backward pass inside of the compiled function: of leaves, of other tensors, of modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

import framesmith

Tensor = torch.Tensor
Hook = Callable[..., Any]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    framesmith.reset()
    yield
    framesmith.reset()


@dataclass
class World:
    """The state that a program works on; `seen` notes the hooks that ran, `handles` those to remove."""

    first: Tensor = field(default_factory=lambda: torch.randn(4, 3, requires_grad=True))
    second: Tensor = field(default_factory=lambda: torch.randn(4, 4, requires_grad=True))
    net: nn.Sequential = field(
        default_factory=lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3), nn.Tanh())
    )
    seen: list[Any] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)

    def parameters(self) -> list[Tensor]:
        return [self.first, self.second, *self.net.parameters()]

    def noting(self, name: Any, change: Hook | None = None) -> Hook:
        def hook(*args: Any) -> Any:
            self.seen.append(name)
            return None if change is None else change(*args)

        return hook


@dataclass(frozen=True)
class Case:
    """A program, and what registers hooks before it is called."""

    program: Callable[[World, Tensor], Any]
    register: Callable[[World], None]


WHOLE: dict[str, Case] = {}
IN_PIECES: dict[str, Case] = {}


def nothing(world: World) -> None:
    pass


def whole(register: Callable[[World], None] = nothing, table: dict[str, Case] = WHOLE) -> Callable[[Any], Any]:
    def enter(program: Any) -> Any:
        table[program.__name__] = Case(program, register)
        return program

    return enter


def in_pieces(register: Callable[[World], None] = nothing) -> Callable[[Any], Any]:
    return whole(register, IN_PIECES)


# Hooks of leaves


class Counting:
    """An object that is a hook, and has a method that is one."""

    def __init__(self, world: World) -> None:
        self.world, self.calls = world, 0

    def __call__(self, grad: Tensor) -> Tensor:
        self.calls += 1
        self.world.seen.append(self.calls)
        return grad * self.calls

    def plus(self, grad: Tensor) -> Tensor:
        return grad + 1


def on_leaves(world: World) -> None:
    world.first.register_hook(world.noting("first", lambda grad: grad * 2))
    world.first.register_hook(world.noting("again"))
    world.second.register_hook(world.noting("second", lambda grad: grad.clamp(-0.1, 0.1)))


@whole(on_leaves)
def leaves(world: World, x: Tensor) -> Any:
    ((x @ world.first.t()).sin() @ world.second).sum().backward()


@whole(on_leaves)
def accumulated(world: World, x: Tensor) -> Any:
    for part in x.chunk(2):
        ((part @ world.first.t()).sin() @ world.second).sum().backward()


def on_leaves_by_objects(world: World) -> None:
    hook = Counting(world)
    world.first.register_hook(hook)
    world.first.register_hook(hook.plus)
    world.second.register_hook(lambda grad: (grad.mul_(3), None)[1])


@whole(on_leaves_by_objects)
def objects_as_hooks(world: World, x: Tensor) -> Any:
    ((x @ world.first.t()).sin() @ world.second).sum().backward()


def keeping(world: World) -> None:
    world.first.register_hook(world.kept.append)


@whole(keeping)
def kept_gradient_of_a_leaf(world: World, x: Tensor) -> Any:
    world.kept.clear()
    (x @ world.first.t()).sin().sum().backward()
    assert world.first.grad is not None
    world.first.grad.mul_(2)
    return world.kept[0]


@whole()
def leaf_hooked_in_the_function(world: World, x: Tensor) -> Any:
    handle = world.first.register_hook(world.noting("inside", lambda grad: grad * 2))
    (x @ world.first.t()).sin().sum().backward()
    handle.remove()


@whole()
def made_leaf(world: World, x: Tensor) -> Any:
    made = x.clone().requires_grad_()
    made.register_hook(world.noting("made", lambda grad: grad * 2))
    made.register_post_accumulate_grad_hook(world.noting("accumulated"))
    (made @ world.first.t()).sin().sum().backward()
    return made.grad


def after_accumulation(world: World) -> None:
    for at, parameter in enumerate(world.parameters()):
        parameter.register_post_accumulate_grad_hook(world.noting(at))
    world.first.register_hook(world.noting("before", lambda grad: grad * 2))


@whole(after_accumulation)
def post_accumulate(world: World, x: Tensor) -> Any:
    (world.net(x).sum() + (x @ world.first.t() @ world.second).sum()).backward()


def stepping(world: World) -> None:
    optimizers = {one: torch.optim.SGD([one], lr=0.1, momentum=0.9) for one in world.net.parameters()}

    def step(parameter: Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for one in world.net.parameters():
        one.register_post_accumulate_grad_hook(step)


def on_norms(world: World) -> None:
    world.kept[:] = [nn.BatchNorm1d(4)]
    for at, parameter in enumerate(world.kept[0].parameters()):
        parameter.register_hook(world.noting(at, lambda grad: grad * 2))
        parameter.register_post_accumulate_grad_hook(world.noting((at, "after")))


@whole(on_norms)
def parameters_that_become_ready_at_once(world: World, x: Tensor) -> Any:
    world.kept[0](x @ world.first.t()).sin().sum().backward()
    return [parameter.grad for parameter in world.kept[0].parameters()]


@whole(stepping)
def optimizers_in_the_pass(world: World, x: Tensor) -> Any:
    loss = world.net(x).square().sum()
    loss.backward()
    return loss.detach()


# Hooks of other tensors


@whole()
def chained(world: World, x: Tensor) -> Any:
    y = x @ world.first.t()
    y.register_hook(world.noting("y", lambda grad: grad * 2))
    z = y.sin()
    z.register_hook(world.noting("z", lambda grad: grad.clamp(-0.5, 0.5)))
    (z @ world.second).sum().backward()


@whole(on_leaves)
def residual(world: World, x: Tensor) -> Any:
    """Parts of the pass have nodes in common."""
    y = x @ world.first.t()
    y.register_hook(world.noting("y", lambda grad: grad * 2))
    z = y + y.sin() @ world.second
    z.register_hook(world.noting("z", lambda grad: grad.clamp(-0.5, 0.5)))
    loss = (z * y).sum()
    loss.backward()
    return loss


@whole()
def branches(world: World, x: Tensor) -> Any:
    trunk = x @ world.first.t()
    y, z = trunk.sin(), trunk.cos()
    y.register_hook(world.noting("y", lambda grad: grad * 2))
    z.register_hook(world.noting("z", lambda grad: grad * 3))
    (y @ world.second + z).sum().backward()


@whole()
def of_the_loss(world: World, x: Tensor) -> Any:
    loss = (x @ world.first.t()).sum()
    loss.register_hook(world.noting("loss", lambda grad: grad * 3))
    loss.backward()


@whole()
def of_several_outputs(world: World, x: Tensor) -> Any:
    y = x @ world.first.t()
    y.register_hook(world.noting("y", lambda grad: grad * 2))
    z = y.sin()
    z.register_hook(world.noting("z", lambda grad: grad * 5))
    torch.autograd.backward([z.sum(), y, z], [None, torch.ones_like(y), torch.ones_like(z)])


@whole()
def part_of_a_split(world: World, x: Tensor) -> Any:
    y, z = (x @ world.first.t()).split(2, dim=1)
    y.register_hook(world.noting("y", lambda grad: grad * 2))
    (y * z).sin().sum().backward()


@whole()
def of_a_view(world: World, x: Tensor) -> Any:
    y = x @ world.first.t()
    view = y[:, 1:]
    view.register_hook(world.noting("view", lambda grad: grad * 2))
    (view.sin().sum() + y.sum()).backward()


@whole(on_leaves)
def some_inputs(world: World, x: Tensor) -> Any:
    """Only hooks on the way to these inputs run."""
    y, z = x @ world.first.t(), x @ world.second[:, :3].t()
    y.register_hook(world.noting("y"))
    z.register_hook(world.noting("z"))
    (y + z).sum().backward(inputs=[world.second])


@whole()
def unreached(world: World, x: Tensor) -> Any:
    y, z = x @ world.first.t(), x @ world.second[:, :3].t()
    z.register_hook(world.noting("z"))
    y.sum().backward()
    z.sum().backward()


@whole()
def retained_graph(world: World, x: Tensor) -> Any:
    y = x @ world.first.t()
    handle = y.register_hook(world.noting("y", lambda grad: grad * 2))
    loss = y.sin().sum()
    loss.backward(retain_graph=True)
    (loss * 3).backward(retain_graph=True)
    handle.remove()
    (loss * 2).backward()


@whole()
def retained_gradients(world: World, x: Tensor) -> Any:
    y = x @ world.first.t()
    y.retain_grad()
    y.register_hook(world.noting("y", lambda grad: grad * 2))
    loss = (y.sin() @ world.second).sum()
    loss.backward(retain_graph=True)
    before = y.grad
    loss.backward()
    return before, y.grad


@whole()
def retained_gradient_of_a_result(world: World, x: Tensor) -> Any:
    y = x @ world.first.t()
    y.retain_grad()
    y.sin().sum().backward()
    return y, y.grad


@whole()
def clipped_by_norm(world: World, x: Tensor) -> Any:
    y = x @ world.first.t()
    y.register_hook(lambda grad: grad * torch.clamp(0.1 / (grad.norm() + 1e-6), max=1))
    (y.tanh() @ world.second).sum().backward()
    return y.detach()


@whole()
def kept_gradient(world: World, x: Tensor) -> Any:
    y, kept = x @ world.first.t(), list[Tensor]()
    y.register_hook(kept.append)
    (y * y).sum().backward()
    return kept[0]


@whole()
def kept_handle(world: World, x: Tensor) -> Any:
    y = x @ world.first.t()
    world.kept[:] = [y.register_hook(world.noting("y", lambda grad: grad * 2))]
    y.sin().sum().backward()
    world.kept[0].remove()
    world.kept.clear()


@whole()
def consumed(world: World, x: Tensor) -> Any:
    y = x @ world.first.t()
    y.register_hook(world.noting("y", lambda grad: grad * 2))
    loss = y.sin().sum()
    loss.backward()
    return loss


def raising(world: World) -> None:
    def refuse(grad: Tensor) -> None:
        raise ValueError("refused")

    world.second.register_hook(refuse)


@whole(raising)
def caught_error(world: World, x: Tensor) -> Any:
    try:
        ((x @ world.first.t()).sin() @ world.second).sum().backward()
    except ValueError as error:
        world.seen.append(str(error))
    return torch.is_grad_enabled()


# Hooks of modules


def on_modules(world: World) -> None:
    for at, module in enumerate([world.net, *world.net]):
        name = type(module).__name__
        module.register_full_backward_hook(world.noting((name, at), lambda module, grads, outer: (grads[0] * 2,)))
        module.register_full_backward_pre_hook(world.noting((name, at, "pre"), lambda module, grads: (grads[0] * 3,)))


@whole(on_modules)
def of_modules(world: World, x: Tensor) -> Any:
    y = x @ world.second[:3, :3]
    y.register_hook(world.noting("y"))
    world.net(y).square().sum().backward()


@whole(on_modules)
def of_a_module_called_twice(world: World, x: Tensor) -> Any:
    made = x.clone().requires_grad_()
    world.net(world.net(made)).square().sum().backward()
    return made.grad


# What is left to the engine


def asking(world: World) -> None:
    world.first.register_hook(lambda grad: print(end=""))


@in_pieces(asking)
def hook_that_cannot_be_traced(world: World, x: Tensor) -> Any:
    ((x @ world.first.t()).sin() @ world.second).sum().backward()
    return world.first.grad * 2  # type: ignore[operator]


@in_pieces()
def hook_that_registers_hooks(world: World, x: Tensor) -> Any:
    y = x @ world.first.t()
    z = y.sin()
    z.register_hook(lambda grad: (y.register_hook(world.noting("inner", lambda grad: grad * 3)), None)[1])
    (z @ world.second).sum().backward()


@in_pieces()
def hook_without_a_gradient(world: World, x: Tensor) -> Any:
    parts = (x @ world.first.t()).unbind(1)
    for at, part in enumerate(parts):
        part.register_hook(world.noting(at, lambda grad: None if grad is None else grad * 2))
    (parts[0] * parts[1]).sum().backward()


@in_pieces()
def hook_of_another_dtype(world: World, x: Tensor) -> Any:
    y = x @ world.first.t()
    y.register_hook(lambda grad: grad.double())
    try:
        y.sum().backward()
    except RuntimeError as error:
        world.seen.append(str(error))


@in_pieces(on_leaves)
def gradients_of_hooked_tensors(world: World, x: Tensor) -> Any:
    y = x @ world.first.t()
    y.register_hook(world.noting("y", lambda grad: grad * 2))
    return torch.autograd.grad(y.sin().sum(), world.first)


def shown(value: Any) -> Any:
    """Return what a user sees of a result."""
    if isinstance(value, Tensor):
        return value.detach().clone(), value.stride(), value.requires_grad, value.is_leaf
    return [shown(one) for one in value] if isinstance(value, list | tuple) else value


def outcomes(case: Case, compile: Callable[[Any], Any]) -> tuple[list[Any], list[Any]]:
    """Return what several calls show, and the hooks that ran in each: the last has another size."""
    torch.manual_seed(0)
    world, found, ran = World(), [], []
    case.register(world)
    run = compile(case.program)
    for call, rows in enumerate((6, 6, 6, 8)):
        torch.manual_seed(call)
        result = run(world, torch.randn(rows, 3))
        grads = [one.grad for one in world.parameters()]
        memory = [one.untyped_storage().data_ptr() for one in grads if one is not None]
        found.append([shown(result), shown(world.parameters()), shown(grads), [memory.index(one) for one in memory]])
        ran.append([*world.seen])
    return found, ran


def check(case: Case, **options: Any) -> None:
    expected, expected_ran = outcomes(case, lambda one: one)
    found, ran = outcomes(case, lambda one: framesmith.compile(one, strict=True, **options))
    assert ran == expected_ran
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("backend", ["cpu", "aot_eager", "eager"])
@pytest.mark.parametrize("name", WHOLE)
def test_hooks_are_part_of_the_graph(name: str, backend: str) -> None:
    check(WHOLE[name], fullgraph=True, backend=backend)
    assert framesmith.stats()["frames_failed"] == 0


@pytest.mark.parametrize("name", ["leaves", "chained", "residual", "of_modules", "retained_gradients"])
def test_dynamic_sizes(name: str) -> None:
    check(WHOLE[name], fullgraph=True, dynamic=True)


@pytest.mark.parametrize("name", IN_PIECES)
def test_other_hooks_are_left_to_the_engine(name: str) -> None:
    check(IN_PIECES[name])
    assert framesmith.stats()["breaks"] > 0


@pytest.mark.parametrize("name", ["consumed", "residual"])
def test_a_history_with_hooks_is_freed_as_in_eager_mode(name: str) -> None:
    messages = []
    for function in (WHOLE[name].program, framesmith.compile(WHOLE[name].program, fullgraph=True, strict=True)):
        with pytest.raises(RuntimeError) as caught:
            function(World(), torch.randn(5, 3)).backward()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_hooks_of_leaves_are_guarded() -> None:
    """Hooks added, replaced and removed between the calls."""
    found = []
    for compile in (lambda one: one, lambda one: framesmith.compile(one, strict=True, fullgraph=True)):
        torch.manual_seed(0)
        world, x = World(), torch.randn(5, 3)
        run, seen = compile(leaves), []
        handles: list[Any] = []
        for factor in (2.0, 3.0, 4.0):
            handles.append(world.first.register_hook(lambda grad, factor=factor: grad * factor))
            run(world, x)
            seen.append(world.first.grad.clone())  # type: ignore[union-attr]
            handles.pop(0).remove()
            run(world, x)
            seen.append(world.first.grad.clone())  # type: ignore[union-attr]
        found.append(seen)
    torch.testing.assert_close(*found)
