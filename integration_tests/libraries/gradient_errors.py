"""Errors of the gradients of training steps against a float64 run: eager's, a compiled module's, and a yardstick's.

The yardstick is eager without oneDNN: other kernels for convolutions, as right as the usual ones, rounded otherwise.
`python -m integration_tests.libraries.gradient_errors FILE.json [NAME...]` measures architectures and writes a table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median

import torch
from torch import nn

import framesmith
from integration_tests.libraries.architectures import ARCHITECTURES, Step
from integration_tests.libraries.decisions import Decisions, all_clear

SEEDS = 5
#: The fewest numbers of a parameter, over all seeds, that give an error's size.
NUMBERS = 20
#: Seeds tried in search of steps whose decisions are clear.
TRIED = 400
#: Of a gradient's norm: eager may be exact by luck, and a result one rounding further on is not worse for it. The last
#: rounding of each number alone is up to half an ULP; four leave room for a few, and hide no loss that adds up.
FLOOR = 4 * torch.finfo(torch.float32).eps

Gradients = dict[str, torch.Tensor]


@dataclass
class Errors:
    """Of one parameter's gradient, seed by seed: its norm in float64, and the norms of distances from it."""

    parameter: str
    numbers: int
    norm: list[float] = field(default_factory=list)
    eager: list[float] = field(default_factory=list)
    compiled: list[float] = field(default_factory=list)
    yardstick: list[float] = field(default_factory=list)

    def add(self, exact: torch.Tensor, *gradients: torch.Tensor) -> None:
        """Take up a seed: the gradient in float64, eager's, the compiled module's and the yardstick's."""
        self.norm.append(exact.norm().item())
        for errors, gradient in zip((self.eager, self.compiled, self.yardstick), gradients, strict=True):
            errors.append((gradient - exact).norm().item())

    def ratio(self, errors: list[float], floor: float = FLOOR) -> float:
        """Return the ratio of these errors to eager's own, beyond the floor, over all seeds.

        One seed does not suffice: eager's errors of weights of a squeeze-and-excitation differ fifteenfold from seed
        to seed, and the yardstick's are eight times eager's on some.
        """
        norm, own, error = (sum(one**2 for one in each) ** 0.5 for each in (self.norm, self.eager, errors))
        return max(error - floor * norm, 0.0) / max(own, sys.float_info.min)


class Trainee:
    """A module that takes one step at a time, each from the weights it is given."""

    def __init__(self, module: nn.Module, dtype: torch.dtype = torch.float32, compiled: bool = False) -> None:
        self.module, self.dtype = module.to(dtype).train(), dtype
        self.run = framesmith.compile(self.module, strict=True) if compiled else self.module

    def step(self, step: Step, seed: int) -> tuple[torch.Tensor, Gradients]:
        """The loss and the gradients by parameter, dropout drawing from `seed`."""
        self.module.load_state_dict(step.module.state_dict())
        self.module.zero_grad()
        inputs = [each.to(self.dtype) if each.is_floating_point() else each for each in step.inputs]
        torch.manual_seed(seed)
        loss = self.run(*inputs)
        loss.backward()
        return loss.detach(), {name: weight.grad for name, weight in self.module.named_parameters()}


def seeded(name: str, seed: int) -> Step:
    """A step of an architecture with the weights and inputs of this seed."""
    torch.manual_seed(seed)
    return ARCHITECTURES[name]()


def clear_steps(name: str, exact: Trainee, eager: Trainee) -> Iterator[tuple[int, Step]]:
    """Steps in which rounding changes no decision. Their losses agree: dropout drops the same in both dtypes."""
    for seed in range(TRIED):
        step = seeded(name, seed)
        with Decisions() as wanted:
            loss, _ = exact.step(step, seed)
        with Decisions() as found:
            torch.testing.assert_close(eager.step(step, seed)[0].double(), loss, rtol=1e-4, atol=0.0)
        if all_clear(wanted, found):
            yield seed, step


def measure(name: str) -> list[Errors]:
    """The errors of one architecture's parameters, over at least five seeds."""
    modules = [seeded(name, 0).module for _ in range(3)]
    exact, eager = Trainee(modules[0], torch.float64), Trainee(modules[1])
    compiled = Trainee(modules[2], compiled=True)
    table = [Errors(key, weight.numel()) for key, weight in modules[0].named_parameters()]
    count = max(SEEDS, -(-NUMBERS // min(errors.numbers for errors in table)))
    steps = list(islice(clear_steps(name, exact, eager), count))
    assert len(steps) == count, f"only {len(steps)} of {TRIED} steps take no decision that rounding could change"
    for seed, step in steps:
        _, wanted = exact.step(step, seed)
        runs = [eager.step(step, seed)[1], compiled.step(step, seed)[1]]
        with torch.backends.mkldnn.flags(enabled=False):
            runs.append(eager.step(step, seed)[1])
        for errors in table:
            errors.add(wanted[errors.parameter], *(gradients[errors.parameter] for gradients in runs))
    return table


def summary(name: str) -> dict[str, object]:
    """A row: over parameters, the median of errors divided by eager's, and their maximum beyond the floor."""
    framesmith.reset()
    table = measure(name)
    row: dict[str, object] = {"case": name, "parameters": len(table), "seeds": len(table[0].norm)}
    for side in ("compiled", "yardstick"):
        plain = [errors.ratio(getattr(errors, side), floor=0.0) for errors in table]
        beyond = [errors.ratio(getattr(errors, side)) for errors in table]
        row[side] = {"median": round(median(plain), 2), "max_beyond_floor": round(max(beyond), 2)}
    print(row, flush=True)
    return row


def main() -> None:
    """Measure every architecture, or those named, and write the table."""
    import integration_tests.conftest  # noqa: F401  for torchvision
    from benchmarks.harness.timing import machine

    rows = [summary(name) for name in sys.argv[2:] or ARCHITECTURES]
    content = {"suite": "training accuracy", "machine": machine(), "rows": rows}
    Path(sys.argv[1]).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
