"""Optimizer steps and gradients read inside compiled functions, against eager mode."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import framesmith

Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]

#: Those whose step is one graph.
WHOLE: dict[str, Make] = {
    "SGD": lambda ps: torch.optim.SGD(ps, lr=0.1),
    "momentum": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.01),
    "Nesterov": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True, maximize=True),
    "many at once": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, foreach=True),
    "SGD, fused": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.1, fused=True),
    "SGD, fused, of no momentum": lambda ps: torch.optim.SGD(ps, lr=0.1, maximize=True, fused=True),
    "Nesterov, fused": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True, fused=True),
    "RMSprop": lambda ps: torch.optim.RMSprop(ps, lr=0.1, centered=True, momentum=0.5),
    "RMSprop, many at once": lambda ps: torch.optim.RMSprop(ps, lr=0.1, foreach=True),
    "Adadelta": lambda ps: torch.optim.Adadelta(ps),
    "Adam": lambda ps: torch.optim.Adam(ps),
    "Adam of a rate in a tensor": lambda ps: torch.optim.Adam(ps, lr=torch.tensor(0.01)),
    "Adam, many at once": lambda ps: torch.optim.Adam(ps, foreach=True, maximize=True, weight_decay=0.1),
    "Adam, fused": lambda ps: torch.optim.Adam(ps, amsgrad=True, weight_decay=0.1, maximize=True, fused=True),
    "AdamW, many at once": lambda ps: torch.optim.AdamW(ps, foreach=True, amsgrad=True),
    "AdamW, fused": lambda ps: torch.optim.AdamW(ps, lr=torch.tensor(0.01), fused=True),
    "NAdam, many at once": lambda ps: torch.optim.NAdam(ps, foreach=True),
    "Adagrad": lambda ps: torch.optim.Adagrad(ps),
    "Adagrad, fused": lambda ps: torch.optim.Adagrad(ps, lr=0.1, lr_decay=0.1, weight_decay=0.1, fused=True),
    "Rprop": lambda ps: torch.optim.Rprop(ps),
    "RAdam": lambda ps: torch.optim.RAdam(ps),
    "RAdam, many at once": lambda ps: torch.optim.RAdam(ps, foreach=True, weight_decay=0.1),
    "ASGD": lambda ps: torch.optim.ASGD(ps, t0=3),
    "ASGD, many at once": lambda ps: torch.optim.ASGD(ps, foreach=True, t0=3),
    "Adamax, many at once": lambda ps: torch.optim.Adamax(ps, foreach=True, maximize=True),
}


def trained(make: Make, compiles: bool) -> list[Any]:
    """Parameters, momenta and losses of a few steps, some parameters without a gradient in some of them."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    optimizer = make(list(model.parameters()))

    def step() -> None:
        optimizer.step()

    run = framesmith.compile(step, strict=True) if compiles else step
    losses = []
    for at in range(7):
        optimizer.zero_grad(set_to_none=at % 3 == 0)
        loss = model(torch.randn(5, 4)).square().mean()
        loss.backward()
        if at == 4:
            model[0].weight.grad = None
        run()
        losses.append(loss.detach())
    state = [value for per in optimizer.state.values() for _, value in sorted(per.items())]
    return [*model.parameters(), *losses, *state]


#: A variance is the difference of two means: eager mode's seven steps are as far from those in float64.
CANCELLING = {"RMSprop": 2e-5}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", WHOLE)
def test_steps_are_eagers(name: str) -> None:
    framesmith.reset()
    make = WHOLE[name]
    for found, wanted in zip(trained(make, True), trained(make, False), strict=True):
        torch.testing.assert_close(found, wanted, rtol=CANCELLING.get(name), atol=CANCELLING.get(name))
    assert framesmith.stats()["frames_compiled"] > 0


@pytest.mark.parametrize("used", [False, True])
def test_a_step_is_one_graph(used: bool) -> None:
    """Also when torch.compile was used before: that wraps methods of all optimizers, to keep itself away."""
    if used:
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    for make in WHOLE.values():
        framesmith.reset()
        parameters = [torch.nn.Parameter(torch.randn(3)) for _ in range(3)]
        optimizer = make(parameters)
        for parameter in parameters:
            parameter.grad = torch.randn(3)
        optimizer.step()

        def step(optimizer: Any = optimizer) -> None:
            optimizer.step()

        explained = framesmith.explain(step)
        assert (explained.graph_count, explained.break_count) == (1, 0), explained


def test_a_whole_training_step() -> None:
    def train(model: Any, optimizer: Any, x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        for parameter in model.parameters():
            parameter.grad.clamp_(-0.1, 0.1)
        optimizer.step()
        return loss

    found = []
    for run in (train, framesmith.compile(train, strict=True)):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = [run(model, optimizer, torch.randn(3, 4)).detach() for _ in range(4)]
        found.append([*losses, *model.parameters(), *(p.grad for p in model.parameters())])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("found_inf", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"])
def test_fused_steps_of_scaled_gradients(name: str, dtype: torch.dtype, found_inf: float) -> None:
    """A step that found an infinite gradient changes nothing, others leave the gradients without their scale."""
    framesmith.reset()
    torch.manual_seed(0)
    shapes = [(3, 4), (5,), ()]
    parameters, grads, first = ([torch.randn(shape).to(dtype) for shape in shapes] for _ in range(3))
    second, third = ([torch.rand(shape).to(dtype) for shape in shapes] for _ in range(2))
    steps = [torch.tensor(2.0) for _ in shapes]
    scales = {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(found_inf)}
    lists = {"sgd": [first], "adagrad": [second, steps]}.get(name.split("_")[2], [first, second, third, steps])
    numbers: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.1, "maximize": True}
    numbers |= {
        "sgd": {"momentum": 0.9, "dampening": 0.1, "nesterov": True, "is_first_step": False},
        "adagrad": {"lr_decay": 0.1, "eps": 1e-8},
    }.get(name.split("_")[2], {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "amsgrad": True})

    def step(parameters: Any, grads: Any, lists: Any, scales: Any) -> None:
        with torch.no_grad():
            getattr(torch, name)(parameters, grads, *lists, **numbers, **scales)

    ours, eagers = copy.deepcopy((parameters, grads, lists)), (parameters, grads, lists)
    framesmith.compile(step, strict=True, fullgraph=True)(*ours, scales)
    step(*eagers, scales)
    torch.testing.assert_close(ours, eagers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["addcdiv", "addcmul"])
def test_a_number_in_a_tensor(name: str, dtype: torch.dtype) -> None:
    """As the factor of one tensor's operators, with gradients (a number has none) and without."""
    framesmith.reset()

    def run(x: torch.Tensor, a: torch.Tensor, value: torch.Tensor, changed: torch.Tensor) -> Any:
        new = getattr(torch, name)(x, a, a + 1, value=value * 2), getattr(x, name)(a, a + 1, value=value)
        return *new, getattr(changed, f"{name}_")(a, a + 1, value=value)

    results = []
    for step in (run, framesmith.compile(run, strict=True, fullgraph=True)):
        for leaf, value in (
            (False, torch.tensor(0.3)),
            (True, torch.tensor(0.3)),
            (False, torch.tensor(1 / 3).double()),
        ):
            torch.manual_seed(0)
            x, a = torch.rand(3, 4).to(dtype).requires_grad_(leaf), torch.rand(4).to(dtype)
            changed = torch.rand(3, 4).to(dtype)
            found = step(x, a, value, changed)
            sum(result.float().sum() for result in found).backward() if leaf else None
            results.append([*found, changed, x.grad])
    half = len(results) // 2
    torch.testing.assert_close(results[half:], results[:half])


@pytest.mark.parametrize("many", ["_foreach_addcdiv", "_foreach_addcmul"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
def test_numbers_in_a_tensor(many: str, dtype: torch.dtype) -> None:
    """A number for each of many tensors, given in one tensor; of integers the operator stays whole."""
    framesmith.reset()
    torch.manual_seed(0)
    if dtype == torch.int64 and many == "_foreach_addcdiv":
        pytest.skip("integers are not divided")
    tensors = [[(torch.rand(shape) * 9 + 1).to(dtype) for shape in [(3, 4), (5,), ()]] for _ in range(3)]
    numbers = torch.tensor([2, 3, 4]) if dtype == torch.int64 else torch.rand(3)

    def both(tensors: Any, numbers: torch.Tensor) -> Any:
        new = getattr(torch, many)(*tensors, numbers)
        changed = getattr(torch, f"{many}_")(*tensors, scalars=numbers) or tensors[0]  # torch 2.11 returns nothing
        return new, [tensor + 1 for tensor in changed]

    wanted = copy.deepcopy(tensors)
    found = framesmith.compile(both, strict=True, fullgraph=True)(tensors, numbers)
    torch.testing.assert_close((found, tensors), (both(wanted, numbers), wanted))


def test_numbers_that_are_refused() -> None:
    """One too few, and not in a row: eager mode's errors, with nothing changed."""
    for numbers, error in ((torch.rand(2), "length of scalars"), (torch.rand(6)[::2], "contiguous")):
        framesmith.reset()
        tensors = [torch.ones(2) for _ in range(3)]

        def run(tensors: Any = tensors, numbers: torch.Tensor = numbers) -> None:
            tensors[0].add_(1)
            torch._foreach_addcdiv_(tensors, tensors, tensors, numbers)

        with pytest.raises(RuntimeError, match=error):
            framesmith.compile(run)()
        torch.testing.assert_close(tensors, [torch.full((2,), 2.0), torch.ones(2), torch.ones(2)])


@pytest.mark.parametrize(
    "name", ["_foreach_add_", "_foreach_mul_", "_foreach_sqrt_", "_foreach_zero_", "_foreach_lerp_"]
)
def test_changes_of_many_tensors_are_counted(name: str) -> None:
    """An operator of many tensors that changes a tensor saved for backward is an error, as in eager mode."""
    framesmith.reset()
    numbers = () if name in ("_foreach_sqrt_", "_foreach_zero_") else (2.0,)

    def change(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        loss = (w * x).sum()
        with torch.no_grad():
            getattr(torch, name)([x], *([[x + 1]] if name == "_foreach_lerp_" else ()), *numbers)
        return loss

    for run in (change, framesmith.compile(change, strict=True)):
        x, w = torch.rand(3), torch.rand(3, requires_grad=True)
        before = (w * x).sum()
        inside = run(x, w)
        assert x._version == 1
        for loss in (before, inside):
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
