"""In-place forms of every kind, in inference mode, under `no_grad` and neither: around, as a block, as a decorator.

A form takes numbers `x` and `y`, both 2 by 3, and whole numbers `n`; it may change `x` and `n`.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from integration_tests.harness.differential import Case
from integration_tests.programs.families import Family, nothing
from integration_tests.programs.in_place.of_layers import LAYERS
from integration_tests.programs.in_place.of_methods import METHODS
from integration_tests.programs.in_place.of_statements import STATEMENTS

family = Family()
Form = Callable[..., Any]
FORMS: dict[str, Form] = {**METHODS, **LAYERS, **STATEMENTS}


def numbers(inference: bool) -> tuple[torch.Tensor, ...]:
    """Fresh arguments of a form, made in inference mode or not."""
    with torch.inference_mode(inference):
        x = torch.tensor([[-1.5, 0.5, 2.0], [3.0, -0.25, 0.75]])
        return x, torch.tensor([[1.0, 2.0, 0.5], [3.0, 1.5, 2.5]]), torch.tensor([[1, 4, 2], [7, 5, 9]])


#: context, and whether the arguments were made in inference mode
ORDERS = (
    ((torch.inference_mode, True), (torch.inference_mode, False), (nothing, False), (torch.inference_mode, True)),
    ((nothing, False), (torch.inference_mode, False), (torch.no_grad, True), (torch.inference_mode, True)),
    ((torch.no_grad, False), (torch.inference_mode, True), (torch.no_grad, True), (nothing, False)),
)


def called_within(change: Form, order: int) -> Case:
    """A call in each context of one of the orders."""

    def f(x, y, n):
        made = x + 0
        return change(x, y, n), change(made, y, n.clone()), made

    contexts = ORDERS[order]
    return Case(f, [numbers(inference) for _, inference in contexts], around=[context for context, _ in contexts])


def as_a_block(change: Form) -> Case:
    """Tensors made before, within and after the block, and the caller's, are changed within it."""

    def f(x, y, n):
        before = x * 1
        with torch.inference_mode():
            results = change(x, y, n), change(before, y, n.clone())
            within = x + y if x.shape == y.shape else y + 1
            last = change(within, y, n.clone())
        behind = y + 1
        change(behind, y, n.clone())
        return results, last, before, within, behind, within.is_inference(), before.is_inference()

    return Case(f, [numbers(inference) for inference in (False, True)])


def as_a_decorator(change: Form) -> Case:
    """Functions that stand in inference mode or under `no_grad`, called from one that does not."""

    @torch.inference_mode()
    def inferred(x, y, n):
        return change(x, y, n), change(y * 1, y, n.clone())

    @torch.no_grad()
    def without(x, y, n):
        return change(x, y, n)

    def f(x, y, n):
        first = inferred(x, y, n)
        return first, without(y + 1, y, n.clone())

    return Case(f, [numbers(inference) for inference in (False, True)])


for _count, (_name, _change) in enumerate(FORMS.items()):
    family.programs[f"{_name}__around"] = functools.partial(called_within, _change, _count % len(ORDERS))
    family.programs[f"{_name}__block"] = functools.partial(as_a_block, _change)
    if _count % 3 == 0 and _name not in METHODS:
        family.programs[f"{_name}__decorator"] = functools.partial(as_a_decorator, _change)


class _Running(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("step", torch.tensor(0))
        self.act = nn.ReLU(inplace=True)
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        self.total += x[0].detach()
        self.step += 1
        y = self.linear(x)
        y += self.total
        y[0] = self.step
        return self.act(y)


def _many(*contexts):
    return [torch.inference_mode if c == "i" else torch.no_grad if c == "n" else nothing for c in contexts]


@family.program
def module_with_running_state() -> Case:
    net = _Running()
    around = _many("i", "i", "p", "n", "i")
    return Case(net, [(torch.randn(2, 3),) for _ in around], around=around, watch=[net])


@family.program
def module_compiled_outside_first() -> Case:
    net = _Running()
    around = _many("p", "i", "p", "n", "n", "i")
    return Case(net, [(torch.randn(2, 3),) for _ in around], around=around, watch=[net])


@family.program
def module_made_in_inference_mode() -> Case:
    with torch.inference_mode():
        net = _Running()
    around = _many("i", "n", "p", "i")
    return Case(net, [(torch.ones(2, 3),) for _ in around], around=around, watch=[net])


@family.program
def residual_network() -> Case:
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.relu = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(inplace=True)

        def forward(self, x):
            out = self.relu(self.norm(self.conv(x)))
            out += x
            return self.relu(out)

    net = nn.Sequential(Block(), Block(), nn.Flatten(), nn.Linear(32, 2)).eval()
    around = _many("i", "n", "i", "p")
    return Case(net, [(torch.randn(1, 2, 4, 4),) for _ in around], around=around, watch=[net], atol=1e-4)


@family.program
def state_of_a_generator_loop() -> Case:
    def step(total, seen, x, at):
        total += x
        seen[at] = True
        return total.sum()

    with torch.inference_mode():
        total, seen = torch.zeros(2), torch.zeros(3, dtype=torch.bool)
    around = _many("i", "i", "i")
    return Case(step, [(total, seen, torch.ones(2), at) for at in range(3)], around=around)


@family.program
def cache_of_keys_and_values() -> Case:
    keys, values = torch.zeros(1, 4, 2), torch.zeros(1, 4, 2)

    def decode(x, position):
        keys[:, position] = x
        values.index_copy_(1, position, (x * 2)[:, None])
        scores = (x[:, None] @ keys.transpose(1, 2)).masked_fill_(torch.arange(4) > position, float("-inf"))
        return scores.softmax(-1) @ values

    around = _many("i", "i", "n", "i")
    calls = [(torch.randn(1, 2), torch.tensor([at])) for at in range(4)]
    return Case(decode, calls, around=around, watch=[keys, values])


@family.program
def moving_average_of_weights() -> Case:
    net, average = nn.Linear(3, 3), nn.Linear(3, 3)

    @torch.no_grad()
    def update(decay):
        for mean, p in zip(average.parameters(), net.parameters(), strict=True):
            mean.mul_(decay).add_(p, alpha=1 - decay)
            mean.data.lerp_(p.data, 0.1)
        return average.weight * 1

    around = _many("p", "i", "n", "i", "p")
    return Case(update, [(0.9,)] * 5, around=around, watch=[net, average])


@family.program
def inference_tensor_changed_outside() -> Case:
    def f(x):
        with torch.inference_mode():
            y = x * 2
            y += 1
        log = []
        for change in (lambda: y.add_(1), lambda: y[0].mul_(2), lambda: torch.add(y, 1, out=y)):
            try:
                change()
                log.append("done")
            except RuntimeError as error:
                log.append(str(error))
        return y, log, y.is_inference(), x.is_inference()

    return Case(f, [(torch.ones(2),)] * 2)


@family.program
def inference_tensor_needs_a_gradient() -> Case:
    weight = torch.ones(2, requires_grad=True)

    def f(x):
        try:
            return x * weight, None
        except RuntimeError as error:
            return x, str(error)

    with torch.inference_mode():
        x = torch.ones(2)
    return Case(f, [(torch.ones(2),), (x,), (torch.ones(2),), (x,)])


@family.program
def views_made_outside_changed_inside() -> Case:
    def f(x):
        row, flat = x[0], x.view(-1)
        with torch.inference_mode():
            row.add_(1)
            flat[3:] *= 2
            inner = x.t()
            inner[0] = 9
        row.sub_(1)
        return row, flat, x.sum(), inner

    return Case(f, [(torch.arange(6.0).view(2, 3),) for _ in range(3)])


@family.program
def modes_nested() -> Case:
    def f(x):
        with torch.inference_mode():
            y = x * 2
            y += 1
            with torch.inference_mode(False):
                z = torch.zeros(2)
                z[0] = 5
                with torch.enable_grad(), torch.no_grad():
                    z += 1
            y.mul_(z)
        return y, z, y.is_inference(), z.is_inference(), torch.is_inference_mode_enabled()

    around = _many("p", "i", "n", "i")
    return Case(f, [(torch.ones(2),) for _ in around], around=around)


@family.program
def exception_leaves_the_block() -> Case:
    log = torch.zeros(3)

    def f(x, index):
        with torch.inference_mode():
            log[0] += 1
            y = x * 2
            y += log
            y[index] = 7
            log[2] += 1
        return y

    calls = [(torch.ones(3), torch.tensor([at])) for at in (1, 9, 2, 9)]
    return Case(f, calls, watch=[log])


@family.program
def gradients_not_accumulated() -> Case:
    weight = torch.ones(3, requires_grad=True)

    def f(x):
        y = x * weight
        with torch.inference_mode():
            probe = y * 2
            probe += 1
            weight.data.mul_(1)
        return y, probe.sum().item()

    return Case(f, [(torch.arange(3.0),) for _ in range(3)], backward=True, watch=[weight])


@family.program
def break_between_the_changes() -> Case:
    def f(x):
        y = x * 2
        y += 1
        print("between", y.shape)
        y[0] = 7
        F.relu(y, inplace=True)
        print("again")
        y -= 3
        return y

    around = _many("i", "n", "p", "i")
    return Case(f, [(torch.tensor([-1.0, -2.0, 3.0]),) for _ in around], around=around)


@family.program
def compared_after_the_change() -> Case:
    def f(x):
        before = x.clone()
        x += 1
        if torch.equal(before, x):
            return x * 100
        x[x > 1] = 0
        return x, bool((x == before).any()), float(x.sum())

    around = _many("i", "i", "n", "p")
    return Case(f, [(torch.tensor([0.5, -1.0]),) for _ in around], around=around)


family.warm_only.update(family.programs)
