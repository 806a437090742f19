"""Optimizers of torch.optim and their options, each in three uses: its step, a lambda of it, a whole training step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import (
    ASGD,
    LBFGS,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
    SparseAdam,
)

Parameters = list[nn.Parameter]
Make = Callable[[Parameters], Optimizer]
Step = Callable[[], Any]
Compile = Callable[[Callable[..., Any]], Callable[..., Any]]

WIDTH, ROWS = 8, 4
partial = functools.partial


class Model(nn.Module):
    """Layers with parameters of one and of two dimensions; with `sparse`, one embedding with sparse gradients."""

    def __init__(self, sparse: bool = False, layers: int = 2) -> None:
        super().__init__()
        self.sparse = sparse
        self.first = nn.Embedding(ROWS, WIDTH, sparse=True) if sparse else nn.Linear(WIDTH, WIDTH)
        self.rest = nn.Sequential(*(nn.Sequential(nn.Tanh(), nn.Linear(WIDTH, WIDTH)) for _ in range(layers)))
        if sparse:
            self.rest.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.rest(self.first(x))
        return found


def two_groups(parameters: Parameters, make: Make) -> Optimizer:
    """An optimizer to which a second group of parameters, with a rate of its own, is added later."""
    half = len(parameters) // 2
    optimizer = make(parameters[:half])
    optimizer.add_param_group({"params": parameters[half:], "lr": 0.05})
    return optimizer


def tensor_rate() -> torch.Tensor:
    return torch.tensor(0.02)


def _muon(parameters: Parameters) -> Optimizer:
    found: Optimizer = torch.optim.Muon([p for p in parameters if p.dim() == 2], lr=0.02)
    return found


#: name -> a new optimizer
CONFIGURATIONS: dict[str, Make] = {
    "SGD": partial(SGD, lr=0.1, foreach=False),
    "SGD momentum": partial(SGD, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01, foreach=False),
    "SGD nesterov foreach": partial(SGD, lr=0.01, momentum=0.9, nesterov=True, maximize=True, foreach=True),
    "SGD fused": partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.01, fused=True),
    "Adam": partial(Adam, lr=0.02, foreach=False),
    "Adam foreach amsgrad": partial(Adam, lr=0.02, amsgrad=True, weight_decay=0.1, foreach=True),
    "Adam fused": partial(Adam, lr=0.02, maximize=True, fused=True),
    "Adam tensor rate": lambda ps: Adam(ps, lr=tensor_rate(), foreach=False),
    "Adam two groups": partial(two_groups, make=partial(Adam, lr=0.02)),
    "AdamW": partial(AdamW, lr=0.02, foreach=False),
    "AdamW fused tensor rate": lambda ps: AdamW(ps, lr=tensor_rate(), fused=True),
    "AdamW fused amsgrad": partial(AdamW, lr=0.02, amsgrad=True, fused=True),
    "NAdam": partial(NAdam, lr=0.02, decoupled_weight_decay=True, weight_decay=0.1, foreach=False),
    "NAdam foreach": partial(NAdam, lr=0.02, foreach=True),
    "RAdam": partial(RAdam, lr=0.02, foreach=False),
    "RAdam foreach": partial(RAdam, lr=0.02, weight_decay=0.1, foreach=True),
    "Adagrad": partial(Adagrad, lr=0.1, lr_decay=0.01, foreach=False),
    "Adagrad foreach": partial(Adagrad, lr=0.1, maximize=True, foreach=True),
    "Adagrad fused": partial(Adagrad, lr=0.1, weight_decay=0.01, fused=True),
    "Adadelta foreach": partial(Adadelta, weight_decay=0.01, foreach=True),
    "Adamax": partial(Adamax, lr=0.02, foreach=False),
    "Adamax foreach": partial(Adamax, lr=0.02, weight_decay=0.1, foreach=True),
    "RMSprop centered": partial(RMSprop, lr=0.02, centered=True, momentum=0.5, foreach=False),
    "RMSprop foreach": partial(RMSprop, lr=0.02, maximize=True, foreach=True),
    "Rprop": partial(Rprop, lr=0.02, foreach=False),
    "ASGD": partial(ASGD, lr=0.02, t0=4, foreach=False),
    "ASGD foreach": partial(ASGD, lr=0.02, t0=4, weight_decay=0.1, foreach=True),
    "Adafactor": partial(Adafactor, lr=0.02, foreach=False),
    "Adafactor foreach": partial(Adafactor, lr=0.02, maximize=True, foreach=True),
    "LBFGS": partial(LBFGS, lr=0.1, max_iter=3, history_size=4),
    "SparseAdam": partial(SparseAdam, lr=0.02),
    "Muon": _muon,
}
USES = ("step", "lambda", "whole")
STEPS = 10


def batches() -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(ROWS, WIDTH) for _ in range(STEPS)]


def new_model(name: str, layers: int = 2) -> Model:
    torch.manual_seed(0)
    return Model(name == "SparseAdam", layers)


def loss_of(model: Model, x: torch.Tensor) -> torch.Tensor:
    return model(x[:, 0].abs().long().clamp(max=ROWS - 1) if model.sparse else x).square().mean()


def state_of(optimizer: Optimizer) -> list[Any]:
    """The parameters and what the optimizer keeps of each, in the order of the parameters."""
    return [
        (parameter.detach().clone(), optimizer.state_dict()["state"].get(at, {}))
        for at, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"])
    ]


def stepping(optimizer: Optimizer, model: Model, use: str, compile: Compile) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a training step on a batch, of which the `use` says what is compiled."""

    def closure_of(x: torch.Tensor) -> Callable[[], torch.Tensor] | None:
        if not isinstance(optimizer, LBFGS):
            return None

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, x)
            loss.backward()
            return loss

        return closure

    def whole(x: torch.Tensor) -> torch.Tensor:
        closure = closure_of(x)
        if closure is not None:
            return optimizer.step(closure).detach()
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        if not model.sparse:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    if use == "whole":
        return compile(whole)
    taken = compile(optimizer.step) if use == "step" else compile(lambda *closure: optimizer.step(*closure))

    def step(x: torch.Tensor) -> torch.Tensor:
        closure = closure_of(x)
        if closure is not None:
            return taken(closure).detach()
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        taken()
        return loss.detach()

    return step


def trained(name: str, use: str, compile: Compile) -> list[Any]:
    """Return losses, parameters and states of `STEPS` steps, and of as many with the state in a new optimizer."""
    found: list[Any] = []
    model = new_model(name)
    kept: dict[str, Any] | None = None
    for _ in range(2):
        trainable = [p for p in model.parameters() if p.requires_grad]
        optimizer = CONFIGURATIONS[name](trainable)
        if kept is not None:
            optimizer.load_state_dict(kept)
        step = stepping(optimizer, model, use, compile)
        found += [step(x) for x in batches()]
        found.append(state_of(optimizer))
        kept = optimizer.state_dict()
    return found
