"""`backward()` and `torch.autograd.grad` inside compiled functions: parts of the graph, equal to eager mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import framesmith

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    framesmith.reset()
    yield
    framesmith.reset()


@dataclass
class World:
    """The state that a program works on."""

    net: nn.Module = field(
        default_factory=lambda: nn.Sequential(
            nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 2)
        )
    )
    weight: Tensor = field(default_factory=lambda: torch.randn(3, 4).t().requires_grad_())
    wide: Tensor = field(default_factory=lambda: torch.randn(4, 6)[:, ::2].requires_grad_())
    table: nn.Embedding = field(default_factory=lambda: nn.Embedding(5, 3))
    seen: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)

    def parameters(self) -> list[Tensor]:
        return [*self.net.parameters(), self.weight, self.wide, *self.table.parameters()]


Program = Callable[[World, Tensor], Any]


def loss_of(world: World, x: Tensor) -> Tensor:
    return world.net(x).square().mean()


def stored(world: World, x: Tensor) -> Any:
    loss_of(world, x).backward()


def accumulated(world: World, x: Tensor) -> Any:
    for part in x.split(3):
        loss_of(world, part).backward()
    return world.weight.grad


def a_step(world: World, x: Tensor) -> Any:
    world.optimizer.zero_grad()
    loss = loss_of(world, x)
    loss.backward()
    nn.utils.clip_grad_norm_(world.net.parameters(), 0.5)
    world.optimizer.step()
    return loss.detach()


def zeroed_in_place(world: World, x: Tensor) -> Any:
    loss_of(world, x).backward()
    world.optimizer.step()
    world.optimizer.zero_grad(set_to_none=False)


def in_other_layouts(world: World, x: Tensor) -> Any:
    """Gradients take the layout of dense leaves, and are contiguous for others."""
    ((x @ world.weight.t()).sin().sum() + (x @ world.wide.t()).cos().sum()).backward()


def of_a_view(world: World, x: Tensor) -> Any:
    world.weight.t()[1:].sum().backward()


def shared_gradient(world: World, x: Tensor) -> Any:
    (world.weight + world.wide).backward(torch.ones(4, 3))


def given_gradient(world: World, x: Tensor) -> Any:
    given = x[:4] * 2
    (world.weight * 1).backward(gradient=given)
    return given, world.weight.grad


def leaf_itself(world: World, x: Tensor) -> Any:
    given = torch.ones(4, 3)
    world.weight.backward(given)
    return given


def of_a_gradient_that_others_hold(world: World, x: Tensor) -> Any:
    """Autograd stores a copy of a gradient that somebody holds, but not of one whose memory alone is held."""
    given, flat = torch.ones(4, 3), torch.ones(12)
    (world.weight * 1).backward(given)
    world.table.weight.view(15)[:12].backward(flat)
    world.net[0].weight.view(12).backward(flat)  # type: ignore[operator]
    given.mul_(2)
    flat.mul_(3)
    return given, flat


def gradients_that_share_memory(world: World, x: Tensor) -> Any:
    weight = world.net[0].weight
    (weight.view(12) + world.weight.t().view(12)).sin().sum().backward()  # type: ignore[operator]
    weight.grad.mul_(2)  # type: ignore[union-attr, operator]
    return world.weight.grad * 1  # type: ignore[operator]


def conjugated(world: World, x: Tensor) -> Any:
    made = torch.complex(x, x * 2).requires_grad_()
    made.conj().backward(torch.ones(6, 3) * 1j)
    assert made.grad is not None
    return torch.view_as_real(made.grad.resolve_conj()), made.grad.is_conj()


def of_repeated_inputs(world: World, x: Tensor) -> Any:
    loss = (x @ world.weight.t()).sin().sum()
    loss.backward(inputs=[world.weight, world.weight])


def of_some_inputs(world: World, x: Tensor) -> Any:
    loss = (x @ world.weight.t()).sum() + (x @ world.wide.t()).cos().sum()
    loss.backward(inputs=[world.wide])


def of_several_tensors(world: World, x: Tensor) -> Any:
    torch.autograd.backward([(x @ world.weight.t()).sum(), (x @ world.wide.t())], [None, torch.ones(6, 4)])


def of_made_leaves(world: World, x: Tensor) -> Any:
    made = x.clone().requires_grad_()
    (made @ world.weight.t()).sin().sum().backward()
    return made.grad


def retained(world: World, x: Tensor) -> Any:
    loss = (x @ world.weight.t()).sin().sum()
    loss.backward(retain_graph=True)
    (loss * 2).backward()


def returned_for_another_pass(world: World, x: Tensor) -> Any:
    loss = (x @ world.weight.t()).sin().sum()
    loss.backward(retain_graph=True)
    return loss


def two_losses(world: World, x: Tensor) -> Any:
    trunk = (x @ world.weight.t()).sin()
    first, second = trunk.sum(), (trunk @ world.wide).square().sum()
    first.backward(retain_graph=True)
    second.backward()


def detached_parts(world: World, x: Tensor) -> Any:
    with torch.no_grad():
        target = (x @ world.wide.t()).cos()
    ((x @ world.weight.t()) - target).square().mean().backward()
    return target


def in_no_grad(world: World, x: Tensor) -> Any:
    loss = (x @ world.weight.t()).sin().sum()
    with torch.no_grad():
        loss.backward()
        world.weight.sub_(world.weight.grad)  # type: ignore[arg-type]


def gradients(world: World, x: Tensor) -> Any:
    return torch.autograd.grad((x @ world.weight.t()).sin().sum(), [world.weight])


def unused_inputs(world: World, x: Tensor) -> Any:
    loss = (x @ world.weight.t()).sin().sum()
    found = torch.autograd.grad(loss, [world.weight, world.wide], allow_unused=True, retain_graph=True)
    more = torch.autograd.grad(loss, [world.weight, world.wide], materialize_grads=True)
    return found, more


def of_intermediates(world: World, x: Tensor) -> Any:
    trunk = (x @ world.weight.t()).sin()
    return torch.autograd.grad(trunk.square().sum(), trunk)[0] * 2


def penalty(world: World, x: Tensor) -> Any:
    made = x.clone().requires_grad_()
    y = (made @ world.weight.t()).tanh()
    (grad,) = torch.autograd.grad(y.sum(), made, create_graph=True)
    ((grad.norm(dim=1) - 1).square().mean() + y.mean()).backward()


def hessian_vector(world: World, x: Tensor) -> Any:
    loss = (x @ world.weight.t()).tanh().square().sum()
    (first,) = torch.autograd.grad(loss, world.weight, create_graph=True)
    return torch.autograd.grad((first * x[:4]).sum(), world.weight)[0]


def inner_steps(world: World, x: Tensor) -> Any:
    """MAML by hand: gradients through updates."""
    fast = world.weight
    for _ in range(2):
        loss = (x @ fast.t()).tanh().square().mean()
        (grad,) = torch.autograd.grad(loss, fast, create_graph=True)
        fast = fast - 0.1 * grad
    (x @ fast.t()).tanh().square().mean().backward()


def embedded(world: World, x: Tensor) -> Any:
    world.table(torch.tensor([1, 3, 1])).square().sum().backward()


def under_autocast(world: World, x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        loss = (x @ world.weight.t()).float().sin().sum()
    loss.backward()


def control_flow(world: World, x: Tensor) -> Any:
    y = torch.cond(x.sum() > 0, lambda one: one.sin() @ world.weight.t(), lambda one: one @ world.weight.t(), (x,))
    y.sum().backward()


def consumed(world: World, x: Tensor) -> Any:
    """The loss keeps its history, which the pass has freed."""
    loss = (x @ world.weight.t()).sin().sum()
    loss.backward()
    return loss


def unused_gradients(world: World, x: Tensor) -> Any:
    loss = (x @ world.weight.t()).sin().sum()
    torch.autograd.grad(loss, world.weight)
    return loss


ONE_GRAPH: list[Program] = [
    stored, accumulated, a_step, zeroed_in_place, in_other_layouts, of_a_view, shared_gradient, given_gradient,
    leaf_itself, of_a_gradient_that_others_hold, gradients_that_share_memory, conjugated, of_repeated_inputs,
    of_some_inputs, of_several_tensors, of_made_leaves, retained, returned_for_another_pass, two_losses,
    detached_parts, in_no_grad, gradients, unused_inputs, of_intermediates, penalty, hessian_vector, inner_steps,
    embedded, under_autocast, control_flow, consumed, unused_gradients,
]  # fmt: skip


def hooked_node(world: World, x: Tensor) -> Any:
    if not world.seen:
        torch._dynamo.graph_break()
        node: Any = torch.autograd.graph.get_gradient_edge(world.wide).node
        node.register_hook(lambda *_: world.seen.append("ran"))
        node.register_prehook(lambda *_: world.seen.append("runs"))
        world.seen.append(node)  # which lives as long as somebody has it
    (x @ world.wide.t()).sin().sum().backward()


def in_another_dtype(world: World, x: Tensor) -> Any:
    if hasattr(world.table.weight, "grad_dtype"):
        world.table.weight.grad_dtype = torch.float64
    world.table.weight.square().sum().backward()


def recomputed(world: World, x: Tensor) -> Any:
    checkpoint(lambda one: (one @ world.weight.t()).sin(), x, use_reentrant=False).sum().backward()


def sparse(world: World, x: Tensor) -> Any:
    nn.functional.embedding(torch.tensor([0, 2]), world.table.weight, sparse=True).sum().backward()
    world.table.weight.grad = world.table.weight.grad.to_dense()  # type: ignore[union-attr]


def behind_a_break(world: World, x: Tensor) -> Any:
    y = (x @ world.weight.t()).sin()
    torch._dynamo.graph_break()
    y.sum().backward()


def second_pass(world: World, x: Tensor) -> Any:
    loss = (x @ world.weight.t()).sin().sum()
    loss.backward()
    try:
        loss.backward()
    except RuntimeError as error:
        return str(error)
    return loss


def without_gradients(world: World, x: Tensor) -> Any:
    try:
        x.sum().backward()
    except RuntimeError as error:
        return str(error)
    return None


def not_scalar(world: World, x: Tensor) -> Any:
    try:
        (x @ world.weight.t()).backward()
    except RuntimeError as error:
        return str(error)
    return None


def of_an_unused_input(world: World, x: Tensor) -> Any:
    try:
        torch.autograd.grad(world.wide.sum(), world.weight)
    except RuntimeError as error:
        return str(error)
    return None


def saving_elsewhere(world: World, x: Tensor) -> Any:
    with torch.autograd.graph.save_on_cpu():
        (x @ world.weight.t()).sin().sum().backward()


def with_recorded_gradients(world: World, x: Tensor) -> Any:
    (world.weight.square().sum()).backward(create_graph=True)
    found = world.weight.grad.detach().clone()  # type: ignore[union-attr]
    world.weight.grad = None
    return found


IN_PIECES: list[Program] = [
    hooked_node, in_another_dtype, recomputed, sparse, behind_a_break, second_pass,
    without_gradients, not_scalar, of_an_unused_input, saving_elsewhere, with_recorded_gradients,
]  # fmt: skip


def shown(value: Any) -> Any:
    """Return what a user sees of a result."""
    if isinstance(value, Tensor):
        return value.detach().clone(), value.stride(), value.requires_grad, value.is_leaf
    if isinstance(value, (list, tuple)):
        return [shown(one) for one in value]
    return torch.tensor([*value.encode()]) if isinstance(value, str) else value


def outcomes(program: Program, compile: Callable[[Program], Program], calls: int = 3) -> list[Any]:
    """Return what several calls show: results, parameters, their gradients, whose objects these are, random numbers."""
    torch.manual_seed(0)
    world, found = World(), []
    run = compile(program)
    before = [one.grad for one in world.parameters()]
    for call in range(calls):
        torch.manual_seed(call)
        result = run(world, torch.randn(6, 3))
        grads = [one.grad for one in world.parameters()]
        same = [one is not None and one is other for one, other in zip(grads, before, strict=True)]
        before = grads
        memory = [one.untyped_storage().data_ptr() for one in grads if one is not None]
        found.append([
            shown(result), shown(world.parameters()), shown(grads), shown([*world.net.buffers()]), same,
            [memory.index(one) for one in memory],
            shown([one for one in world.seen if isinstance(one, str | float)]), torch.rand(2),
        ])  # fmt: skip
    return found


@pytest.mark.parametrize("backend", ["cpu", "aot_eager", "eager"])
@pytest.mark.parametrize("program", ONE_GRAPH, ids=lambda one: one.__name__)
def test_a_pass_is_part_of_the_graph(program: Program, backend: str) -> None:
    expected = outcomes(program, lambda one: one)
    found = outcomes(program, lambda one: framesmith.compile(one, fullgraph=True, strict=True, backend=backend))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert framesmith.stats()["frames_failed"] == 0


@pytest.mark.parametrize("program", ONE_GRAPH[:12], ids=lambda one: one.__name__)
def test_dynamic_sizes(program: Program) -> None:
    expected = outcomes(program, lambda one: one)
    torch.testing.assert_close(
        outcomes(program, lambda one: framesmith.compile(one, dynamic=True, strict=True)),
        expected, rtol=1e-4, atol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("program", IN_PIECES, ids=lambda one: one.__name__)
def test_what_others_see_of_a_pass_is_left_to_the_engine(program: Program) -> None:
    expected = outcomes(program, lambda one: one)
    found = outcomes(program, lambda one: framesmith.compile(one, strict=True))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("program", [consumed, unused_gradients], ids=lambda one: one.__name__)
def test_a_history_is_freed_as_in_eager_mode(program: Program) -> None:
    messages = []
    for function in (program, framesmith.compile(program, fullgraph=True, strict=True)):
        loss = function(World(), torch.randn(5, 3))
        with pytest.raises(RuntimeError) as caught:
            loss.backward()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_retained_history_serves_another_pass() -> None:
    grads = []
    for function in (returned_for_another_pass, framesmith.compile(returned_for_another_pass, fullgraph=True)):
        torch.manual_seed(0)
        world = World()
        function(world, torch.randn(5, 3)).backward()
        grads.append(world.weight.grad)
    torch.testing.assert_close(*grads)


def test_hooks_registered_between_calls_recompile() -> None:
    world, x = World(), torch.randn(5, 3)
    compiled = framesmith.compile(in_other_layouts, strict=True)
    compiled(world, x)
    seen: list[Tensor] = []
    world.weight.register_hook(seen.append)
    compiled(world, x)
    assert len(seen) == 1


@pytest.mark.parametrize("change", ["hook after accumulation", "dtype of the gradient"])
def test_what_a_leaf_gets_between_calls_is_seen(change: str) -> None:
    """The leaf's state is one guard, `PLAIN_LEAF`."""
    world, x, seen = World(), torch.randn(5, 3), list[Tensor]()
    compiled = framesmith.compile(in_other_layouts, strict=True)
    compiled(world, x)
    weight: Any = world.weight
    if change == "hook after accumulation":
        weight.register_post_accumulate_grad_hook(seen.append)
    elif hasattr(weight, "grad_dtype"):
        weight.grad, weight.grad_dtype = None, torch.float64
    compiled(world, x)
    assert len(seen) == (change == "hook after accumulation")
    assert weight.grad.dtype == getattr(weight, "grad_dtype", weight.dtype)


def test_gradients_may_pass_through_a_history_from_outside() -> None:
    def program(weight: Tensor, made: Tensor) -> Any:
        loss = made.sin().sum() + weight.sum()
        return torch.autograd.grad(loss, [weight], retain_graph=True), torch.autograd.grad(loss, [made, weight])

    found = []
    for function in (program, framesmith.compile(program, strict=True)):
        weight = torch.arange(3.0).requires_grad_()
        found.append(function(weight, weight.exp()))
    torch.testing.assert_close(found[1], found[0])


def both_reached(one: Tensor, other: Tensor) -> Any:
    (one.sin().sum() + other.cos().sum()).backward()


def both_asked_for(one: Tensor, other: Tensor) -> Any:
    return torch.autograd.grad(one.sin().sum(), [one, other], allow_unused=True)


def one_reached(one: Tensor, other: Tensor) -> Any:
    one.sin().sum().backward()
    return other.grad is None


def stored_in_one(one: Tensor, other: Tensor) -> Any:
    one.grad = torch.ones(3)
    return other.grad is None


@pytest.mark.parametrize("program", [both_reached, both_asked_for, one_reached, stored_in_one])
def test_one_tensor_where_two_were_met_recompiles(program: Callable[[Tensor, Tensor], Any]) -> None:
    found = []
    for function in (program, framesmith.compile(program, strict=True)):
        function(torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True))
        tied = torch.ones(3, requires_grad=True)
        found.append((function(tied, tied), tied.grad))
    assert str(found[0]) == str(found[1])
