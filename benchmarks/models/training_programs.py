"""Training loops' bodies as people compile them: forward, loss, `backward()`, clipping, update and averages in one."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

#: Classes, and the tokens of a vocabulary.
CLASSES, TOKENS = 10, 64
ROWS, FEATURES, WIDTH = 32, 32, 64


@dataclass
class Program:
    """A step that a program compiles whole, the arguments of its n-th call, and what steps change."""

    step: Callable[..., Tensor]
    batch: Callable[[int], tuple[Tensor, ...]]
    modules: tuple[nn.Module, ...]
    optimizers: tuple[torch.optim.Optimizer, ...]
    others: Callable[[], list[Tensor]] = list

    def state(self) -> list[Tensor]:
        """Return copies of parameters, gradients, buffers and the optimizers' tensors."""
        found = [one for module in self.modules for one in (*module.parameters(), *module.buffers())]
        found += [one.grad for one in found if one.grad is not None]
        found += [
            value
            for optimizer in self.optimizers
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        ]
        return [one.detach().clone() for one in (*found, *self.others())]


PROGRAMS: dict[str, Callable[[], Program]] = {}


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    """Add a program under its function's name."""
    PROGRAMS[make.__name__] = make
    return make


def new_program(name: str) -> Program:
    """Return a new program, of the same numbers each time."""
    torch.manual_seed(0)
    made = PROGRAMS[name]()
    torch.manual_seed(1)
    return made


def generator(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def labelled(number: int) -> tuple[Tensor, ...]:
    """Return rows of features and their classes."""
    g = generator(number)
    return torch.randn(ROWS, FEATURES, generator=g), torch.randint(CLASSES, (ROWS,), generator=g)


def rows(number: int) -> tuple[Tensor, ...]:
    """Return rows of features."""
    return labelled(number)[:1]


def texts(number: int) -> tuple[Tensor, ...]:
    """Return token sequences."""
    return (torch.randint(TOKENS, (8, 24), generator=generator(number)),)


def pictures(number: int) -> tuple[Tensor, ...]:
    """Return pictures and their classes."""
    g = generator(number)
    return torch.randn(8, 3, 16, 16, generator=g), torch.randint(CLASSES, (8,), generator=g)


def mlp(inputs: int = FEATURES, outputs: int = CLASSES, layers: int = 3) -> nn.Sequential:
    widths = [inputs, *[WIDTH] * layers]
    hidden = [
        part for one, two in itertools.pairwise(widths) for part in (nn.Linear(one, two), nn.LayerNorm(two), nn.GELU())
    ]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, outputs))


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES),
    )  # fmt: skip


class Block(nn.Module):
    """Causal attention and a multilayer perceptron, each with a norm before and the sum with its input behind.

    Keys have no bias: its gradient is zero but for rounding, which Adam would make steps of.
    """

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.attend(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.widen(self.between(x))))


class Language(nn.Module):
    """A decoder of two blocks that predicts the next token."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(TOKENS, WIDTH), nn.Embedding(24, WIDTH)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, texts: Tensor) -> Tensor:
        x = self.drop(self.tokens(texts) + self.positions(torch.arange(texts.shape[1])))
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.tokens.weight.T
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), texts[:, 1:].flatten())


class Recurrent(nn.Module):
    """An LSTM over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.lstm, self.head = (
            nn.Embedding(TOKENS, 32),
            nn.LSTM(32, WIDTH, batch_first=True),
            nn.Linear(WIDTH, TOKENS),
        )

    def forward(self, texts: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        y, state = self.lstm(self.tokens(texts), state)
        return F.cross_entropy(self.head(y[:, :-1]).flatten(0, 1), texts[:, 1:].flatten()), state


def plain(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Callable[..., Tensor], batch: Callable[..., Any]
) -> Program:
    """A loss, its gradients, the optimizer's step."""

    def step(*given: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(*given)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(step, batch, (model,), (optimizer,))


def crossed(model: nn.Module) -> Callable[..., Tensor]:
    """The cross-entropy of a classifier."""

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    return loss_of


@program
def mlp_sgd() -> Program:
    model = mlp()
    return plain(model, torch.optim.SGD(model.parameters(), 0.05), crossed(model), labelled)


@program
def cnn_momentum() -> Program:
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    return plain(model, optimizer, crossed(model), pictures)


@program
def gpt_adamw() -> Program:
    model = Language(0.1)
    return plain(model, torch.optim.AdamW(model.parameters(), 1e-3), model, texts)


@program
def gpt_adam_fused() -> Program:
    model = Language()
    return plain(model, torch.optim.Adam(model.parameters(), 1e-3, fused=True), model, texts)


@program
def lstm_adamw() -> Program:
    model = Recurrent()
    return plain(model, torch.optim.AdamW(model.parameters(), 1e-3), lambda x: model(x)[0], texts)


@program
def amp_with_scaler() -> Program:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=4)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return Program(step, labelled, (model,), (optimizer,), lambda: [torch.tensor(scaler.get_scale())])


@program
def accumulation() -> Program:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def step(x: Tensor, y: Tensor) -> Tensor:
        total = torch.zeros(())
        for part, classes in zip(x.chunk(4), y.chunk(4), strict=True):
            loss = F.cross_entropy(model(part), classes) / 4
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total

    return Program(step, labelled, (model,), (optimizer,))


@program
def clipping() -> Program:
    model = Language()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def step(x: Tensor) -> Tensor:
        loss = model(x)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack([loss.detach(), norm])

    return Program(step, texts, (model,), (optimizer,))


@program
def gan() -> Program:
    maker, judge = mlp(16, FEATURES), mlp(FEATURES, 1)
    of_maker = torch.optim.Adam(maker.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))

    def step(real: Tensor) -> Tensor:
        noise = torch.randn(real.shape[0], 16)
        made = maker(noise)
        of_judge.zero_grad()
        judged = F.softplus(-judge(real)).mean() + F.softplus(judge(made.detach())).mean()
        judged.backward()
        of_judge.step()
        of_maker.zero_grad()
        fooled = F.softplus(-judge(made)).mean()
        fooled.backward()
        of_maker.step()
        return torch.stack([judged.detach(), fooled.detach()])

    return Program(step, rows, (maker, judge), (of_maker, of_judge))


@program
def wgan_gp() -> Program:
    maker, critic = mlp(16, FEATURES), mlp(FEATURES, 1)
    optimizer = torch.optim.Adam(critic.parameters(), 1e-4, betas=(0.0, 0.9))

    def step(real: Tensor) -> Tensor:
        with torch.no_grad():
            made = maker(torch.randn(real.shape[0], 16))
        between = torch.lerp(real, made, torch.rand(real.shape[0], 1)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        penalty = (slope.norm(2, dim=1) - 1).square().mean()
        loss = critic(made).mean() - critic(real).mean() + 10 * penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(step, rows, (maker, critic), (optimizer,))


@program
def moving_average() -> Program:
    model = mlp()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        return loss.detach()

    return Program(step, labelled, (model, average), (optimizer,))


@program
def schedulers() -> Program:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        warm.step()
        cosine.step()
        return loss.detach()

    return Program(step, labelled, (model,), (optimizer,), lambda: [torch.tensor(optimizer.param_groups[0]["lr"])])


class Adapted(nn.Module):
    """A frozen linear layer, and beside it a trained matmul of narrow matrices."""

    def __init__(self, layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) * 0.02)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + x @ self.down.T @ self.up.T * 2.0


@program
def lora() -> Program:
    model = Language()
    model.requires_grad_(False)
    for block in model.blocks:
        for name in ("attend", "project", "widen", "narrow"):
            setattr(block, name, Adapted(getattr(block, name)))
    trained = [one for one in model.parameters() if one.requires_grad]
    return plain(model, torch.optim.AdamW(trained, 1e-3), model, texts)


@program
def distillation() -> Program:
    teacher, student = mlp(layers=4).eval(), mlp(layers=2)
    optimizer = torch.optim.AdamW(student.parameters(), 1e-3)

    def step(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = F.softmax(teacher(x) / 2.0, -1)
        found = student(x)
        soft = F.kl_div(F.log_softmax(found / 2.0, -1), wanted, reduction="batchmean") * 4.0
        loss = 0.7 * soft + 0.3 * F.cross_entropy(found, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(step, labelled, (teacher, student), (optimizer,))


class Queue(nn.Module):
    """Negative keys of earlier batches."""

    keys: Tensor
    at: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", F.normalize(torch.randn(4 * ROWS, 16), dim=1))
        self.register_buffer("at", torch.zeros((), dtype=torch.long))

    def put(self, keys: Tensor) -> None:
        where = (self.at + torch.arange(keys.shape[0])) % self.keys.shape[0]
        self.keys.index_copy_(0, where, keys)
        self.at.copy_((self.at + keys.shape[0]) % self.keys.shape[0])


@program
def moco() -> Program:
    model = mlp(outputs=16)
    slow = copy.deepcopy(model).requires_grad_(False)
    queue = Queue()
    optimizer = torch.optim.SGD(model.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)

    def step(x: Tensor) -> Tensor:
        q = F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=1)
        with torch.no_grad():
            for to, new in zip(slow.parameters(), model.parameters(), strict=True):
                to.mul_(0.99).add_(new, alpha=0.01)
            k = F.normalize(slow(x + 0.1 * torch.randn_like(x)), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.keys.T], 1) / 0.2
        loss = F.cross_entropy(logits, torch.zeros(x.shape[0], dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            queue.put(k)
        return loss.detach()

    return Program(step, rows, (model, slow, queue), (optimizer,))


@program
def policy_gradient() -> Program:
    policy, value = mlp(outputs=4), mlp(outputs=1)
    optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], 1e-3)

    def step(states: Tensor, rewards: Tensor) -> Tensor:
        scores = F.log_softmax(policy(states), -1)
        with torch.no_grad():
            actions = torch.multinomial(scores.exp(), 1)
        returns = torch.flip(torch.cumsum(torch.flip(rewards, (0,)), 0), (0,))
        guess = value(states).squeeze(-1)
        gain = returns - guess.detach()
        gain = (gain - gain.mean()) / (gain.std() + 1e-6)
        entropy = -(scores.exp() * scores).sum(-1).mean()
        loss = -(scores.gather(1, actions).squeeze(1) * gain).mean() - 0.01 * entropy
        loss = loss + 0.5 * F.mse_loss(guess, returns)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([*policy.parameters(), *value.parameters()], 0.5)
        optimizer.step()
        return loss.detach()

    def batch(number: int) -> tuple[Tensor, ...]:
        g = generator(number)
        return torch.randn(ROWS, FEATURES, generator=g), torch.rand(ROWS, generator=g)

    return Program(step, batch, (policy, value), (optimizer,))


@program
def truncated_in_time() -> Program:
    """A sequence in three pieces: each has a backward pass, the state goes on without its history."""
    model = Recurrent()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step(x: Tensor) -> Tensor:
        state, total = None, torch.zeros(())
        for piece in x.chunk(3, 1):
            loss, state = model(piece, state)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            state = tuple(one.detach() for one in state)
            total += loss.detach()
        return total

    return Program(step, texts, (model,), (optimizer,))


@program
def maml_by_hand() -> Program:
    """Two steps inside on one half of the tasks, whose loss on the other half is differentiated through them."""
    model = nn.Sequential(nn.Linear(1, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def regress(values: Iterable[Tensor], x: Tensor, y: Tensor) -> Tensor:
        w1, b1, w2, b2 = values
        return F.mse_loss(F.linear(torch.tanh(F.linear(x, w1, b1)), w2, b2), y)

    def step(x: Tensor, y: Tensor) -> Tensor:
        total = torch.zeros(())
        for task in range(4):
            values = list(model.parameters())
            for _ in range(2):
                grads = torch.autograd.grad(regress(values, x[task, :8], y[task, :8]), values, create_graph=True)
                values = [value - 0.1 * grad for value, grad in zip(values, grads, strict=True)]
            total = total + regress(values, x[task, 8:], y[task, 8:])
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        return total.detach()

    def batch(number: int) -> tuple[Tensor, ...]:
        g = generator(number)
        x = torch.rand(4, 16, 1, generator=g) * 6 - 3
        return x, torch.sin(x + torch.rand(4, 1, 1, generator=g))

    return Program(step, batch, (model,), (optimizer,))


@contextmanager
def climbed(parameters: list[nn.Parameter], radius: float) -> Iterator[None]:
    """Move the parameters up along their gradients inside."""
    with torch.no_grad():
        norm = torch.stack([one.grad.norm() for one in parameters if one.grad is not None]).norm()
        moves = [one.grad * (radius / (norm + 1e-12)) for one in parameters if one.grad is not None]
        torch._foreach_add_(parameters, moves)
    yield
    with torch.no_grad():
        torch._foreach_sub_(parameters, moves)


@program
def sam() -> Program:
    model = mlp()
    parameters = [*model.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.05, momentum=0.9)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with climbed(parameters, 0.05):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
        optimizer.step()
        return loss.detach()

    return Program(step, labelled, (model,), (optimizer,))
