"""Whole models: inference and training steps per second."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch

from benchmarks.candidates import available, wrap
from benchmarks.harness import Row, compare, print_rows
from benchmarks.programs import DigitsNet, small_bert, training_step


def digits_training(name: str) -> Callable[[], object]:
    """A training step of the digits network on a batch of 64."""
    torch.manual_seed(0)
    model = DigitsNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, target = torch.randn(64, 1, 8, 8), torch.randint(0, 10, (64,))
    return training_step(wrap(name, model), optimizer, x, target)


def bert_inference(name: str) -> Callable[[], object]:
    """A forward pass of the small BERT under no_grad."""
    model, batch = small_bert()
    compiled = wrap(name, model)

    def step() -> object:
        with torch.no_grad():
            return compiled(**batch).last_hidden_state

    return step


def bert_training(name: str) -> Callable[[], object]:
    """Forward and backward of the small BERT with dropout off."""
    model, batch = small_bert()
    compiled = wrap(name, copy.deepcopy(model))

    def step() -> object:
        loss = compiled(**batch).last_hidden_state.square().mean()
        loss.backward()
        return loss.detach()

    return step


CASES: list[tuple[str, Callable[[str], Callable[[], object]]]] = [
    ("digits network, training step", digits_training),
    ("BERT 4x256, inference, 4x128 tokens", bert_inference),
    ("BERT 4x256, forward and backward", bert_training),
]


def run() -> list[Row]:
    """All cases of this suite."""
    rows: list[Row] = []
    for title, make in CASES:
        steps = {name: make(name) for name in available()}
        rows += compare(title, steps, rounds=11, target=0.2)
        print_rows(rows[-len(steps) :])
    return rows
