"""Second derivatives of compiled modules, none of them replayed: whole trainings, MAML, Hessians, changing sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import framesmith

pytestmark = pytest.mark.filterwarnings("error::framesmith_aot.errors.SecondDerivativeWarning")

Module = Callable[[torch.Tensor], torch.Tensor]


def compiled(module: nn.Module) -> Module:
    made: Module = framesmith.compile(module, strict=True)
    return made


def plain(module: nn.Module) -> Module:
    return module


def gan() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.LayerNorm(16), nn.Linear(16, 1))
    generator = nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.SiLU(), nn.Linear(16, 4))
    return critic.double(), generator.double()


def wasserstein(made: Callable[[nn.Module], Module]) -> list[torch.Tensor]:
    """Train a GAN with a gradient penalty for 20 steps; return losses, parameters, buffers, and a random number."""
    critic, generator = gan()
    score, generate = made(critic), made(generator)
    optimizers = [torch.optim.Adam(one.parameters(), 1e-2, betas=(0.5, 0.9)) for one in (critic, generator)]
    torch.manual_seed(1)
    losses = []
    for step in range(20):
        real, fake = torch.randn(8, 4).double() + 2, generate(torch.randn(8, 3).double())
        mixed = torch.lerp(real, fake.detach(), torch.rand(8, 1).double()).requires_grad_()
        [grad] = torch.autograd.grad(score(mixed).sum(), mixed, create_graph=True)
        loss = score(fake.detach()).mean() - score(real).mean() + 10 * (grad.norm(dim=1) - 1).pow(2).mean()
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
        losses.append(loss.detach())
        if step % 4 == 3:
            optimizers[1].zero_grad()
            (-score(fake).mean()).backward()
            optimizers[1].step()
    state = [*critic.state_dict().values(), *generator.state_dict().values()]
    return [torch.stack(losses), *state, torch.rand(2)]


def test_a_gan_with_a_gradient_penalty_trains_as_in_eager_mode() -> None:
    torch.testing.assert_close(wasserstein(compiled), wasserstein(plain))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 1)).double()


def three_inner_steps(made: Callable[[nn.Module], Module]) -> list[torch.Tensor]:
    module = network()
    run: Any = made(module)
    x, y = torch.linspace(-1, 1, 15).double().view(5, 3), torch.linspace(0, 1, 5).double()[:, None]

    def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return F.mse_loss(torch.func.functional_call(run, weights, (x,)), y)

    weights: dict[str, torch.Tensor] = dict(module.named_parameters())
    for _ in range(3):
        grads = torch.autograd.grad(loss(weights), [*weights.values()], create_graph=True)
        weights = {name: one - 0.1 * grad for (name, one), grad in zip(weights.items(), grads, strict=True)}
    loss(weights).backward()
    return [one.grad for one in module.parameters() if one.grad is not None]


def of_the_hessian(made: Callable[[nn.Module], Module]) -> list[torch.Tensor]:
    module = network()
    run, weights = made(module), [*module.parameters()]
    x = torch.linspace(-1, 1, 15).double().view(5, 3)
    found: list[torch.Tensor] = []
    for seed in range(3):
        torch.manual_seed(seed)
        grads = torch.autograd.grad(run(x).pow(2).mean(), weights, create_graph=True)
        found += torch.autograd.grad(grads, weights, [torch.randn_like(one) for one in weights])
    return found


def laplacian(made: Callable[[nn.Module], Module]) -> list[torch.Tensor]:
    """A physics-informed loss: second derivatives by each input, differentiated by the weights."""
    module = network()
    run = made(module)
    x = torch.linspace(-1, 1, 15).double().view(5, 3).requires_grad_()
    [grad] = torch.autograd.grad(run(x).sum(), x, create_graph=True)
    columns = [torch.autograd.grad(grad[:, at].sum(), x, create_graph=True)[0][:, at] for at in range(3)]
    torch.stack(columns).sum(0).pow(2).mean().backward()
    return [one.grad for one in module.parameters() if one.grad is not None]


@pytest.mark.parametrize("of", [three_inner_steps, of_the_hessian, laplacian], ids=lambda of: of.__name__)
def test_derivatives_of_derivatives_are_those_of_eager_mode(of: Callable[..., list[torch.Tensor]]) -> None:
    torch.testing.assert_close(of(compiled), of(plain))


def test_changing_sizes_are_compiled_twice() -> None:
    def penalties(made: Callable[[nn.Module], Module]) -> list[torch.Tensor]:
        module = network()
        run, found = made(module), []
        for rows in (5, 6, 9, 2, 17):
            x = torch.linspace(-1, 1, 3 * rows).double().view(rows, 3).requires_grad_()
            [grad] = torch.autograd.grad(run(x).sum(), x, create_graph=True)
            (grad.norm(dim=1) - 1).pow(2).mean().backward()
            found += [grad, x.grad]
        return [*found, *[one.grad for one in module.parameters() if one.grad is not None]]

    torch.testing.assert_close(penalties(compiled), penalties(plain))


def test_only_the_backward_pass_meets_a_compiled_function() -> None:
    """The function whose gradient is compiled is a small part of a program that is differentiated twice."""

    def inner(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ w)

    def program(run: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda x, w: (run(x.sin(), w * 2) * x).cos()

    inputs = [torch.linspace(-1, 1, 9).double().view(3, 3).requires_grad_() for _ in range(2)]
    assert torch.autograd.gradgradcheck(program(framesmith.compile(inner, strict=True)), inputs)
