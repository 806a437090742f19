"""Well-known recipes as their authors write them: adversarial and variational, residual and recurrent training."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from integration_tests.harness.differential import Case


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm(self.first(x)), inplace=True)
        y = self.second(y)
        y += x
        return F.relu(y)


def residual_network_channels_last() -> Case:
    stem = nn.Sequential(nn.Conv2d(3, 8, 3), _Residual(8), nn.MaxPool2d(2), _Residual(8))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    model = nn.Sequential(stem, head).to(memory_format=torch.channels_last)
    return Case(model, [(torch.randn(2, 3, 12, 12),) for _ in range(3)], watch=[model], backward=True, atol=1e-4)


def lstm() -> Case:
    model = nn.LSTM(4, 6, 2, batch_first=True)

    def f(x: torch.Tensor) -> torch.Tensor:
        output, (hidden, _) = model(x)
        return output.sum() + hidden.sum()

    return Case(f, [(torch.randn(2, 5, 4),) for _ in range(3)], watch=[model], backward=True, atol=1e-4)


def transformer_layer_with_dropout() -> Case:
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.1)
    return Case(model, [(torch.randn(2, 5, 16),) for _ in range(3)], watch=[model], backward=True, atol=1e-4)


def adversarial_training() -> Case:
    generator, critic = nn.Linear(2, 3), nn.Linear(3, 1)
    for_generator = torch.optim.Adam(generator.parameters())
    for_critic = torch.optim.Adam(critic.parameters())

    def step(x: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fake = generator(noise)
        real_loss = F.binary_cross_entropy_with_logits(critic(x), torch.ones(4, 1))
        loss = real_loss + F.binary_cross_entropy_with_logits(critic(fake.detach()), torch.zeros(4, 1))
        for_critic.zero_grad()
        loss.backward()
        for_critic.step()
        fooling = F.binary_cross_entropy_with_logits(critic(fake), torch.ones(4, 1))
        for_generator.zero_grad()
        fooling.backward()
        for_generator.step()
        return loss.detach(), fooling.detach()

    return Case(step, [(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(3)], watch=[generator, critic])


def variational_autoencoder() -> Case:
    encoder, decoder = nn.Linear(4, 4), nn.Linear(2, 4)

    def f(x: torch.Tensor) -> torch.Tensor:
        mean, log_variance = encoder(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(1)
        return F.mse_loss(decoder(z), x) + divergence.mean()

    return Case(f, [(torch.randn(3, 4),) for _ in range(3)], watch=[encoder, decoder], backward=True)


def clipped_gradients_and_schedule() -> Case:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)

    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, list[float]]:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        schedule.step()
        return loss.detach(), norm.detach(), schedule.get_last_lr()

    return Case(step, [(torch.randn(2, 4),) for _ in range(4)], watch=[model])


def parametrised_weights() -> Case:
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))
    )
    return Case(model, [(torch.randn(2, 3),) for _ in range(3)], watch=[model], backward=True)


def activation_checkpointing() -> Case:
    block = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))

    def f(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=False) + x

    return Case(f, [(torch.randn(2, 3),) for _ in range(3)], watch=[block], backward=True)


def function_transforms() -> Case:
    weight = torch.randn(3, 3)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gradient = torch.func.grad(lambda w: (x @ w.T).pow(2).sum())(weight)
        rows = torch.func.vmap(lambda row: row.softmax(-1))(x)
        return gradient, rows

    return Case(f, [(torch.randn(2, 3),) for _ in range(3)])


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x * grad  # deliberately not the derivative: it must be this one that runs


def custom_autograd_function() -> Case:
    layer = nn.Linear(3, 3)
    return Case(
        lambda x: _Square.apply(layer(x)), [(torch.randn(2, 3),) for _ in range(3)], watch=[layer], backward=True
    )


def policy_gradient() -> Case:
    policy = nn.Linear(3, 4)

    def f(x: torch.Tensor) -> torch.Tensor:
        distribution = torch.distributions.Categorical(logits=policy(x))
        action = distribution.sample()
        return distribution.log_prob(action).sum() + distribution.entropy().mean()

    return Case(f, [(torch.randn(2, 3),) for _ in range(3)], watch=[policy], backward=True)


def many_batch_sizes() -> Case:
    model = nn.Linear(3, 3)
    return Case(lambda x: model(x).relu().sum(0), [(torch.randn(n + 1, 3),) for n in range(12)], watch=[model])


def metric_without_gradients() -> Case:
    model = nn.Linear(3, 3)

    def accuracy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (logits.argmax(-1) == target).float().mean()

    def f(x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = model(x)
        with torch.no_grad():
            score = accuracy(logits, target)
        return F.cross_entropy(logits, target), score

    return Case(f, [(torch.randn(4, 3), torch.randint(0, 3, (4,))) for _ in range(3)], watch=[model], backward=True)
