"""A usual training loop: each kind of pass is compiled once or twice."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from harness import same_gradients
from torch import nn
from torch.utils.checkpoint import checkpoint

STEPS = 12
DATA = torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(0, 3, (400,), generator=torch.Generator().manual_seed(1))


def slices(at):
    return slice(8 * at, 8 * at + 8)


def last_smaller(at):
    return slice(8 * at, 8 * at + (5 if at % 4 == 3 else 8))


def plain(model, x, y, at):
    return F.cross_entropy(model(x), y)


def nothing(model, at):
    pass


def toggled(model, at):
    model[0].requires_grad_(at % 4 < 2)


def turns(model, at):
    model.train(at % 3 != 2)


def hooked(model, at):
    """A new hook each time, which does something else."""
    for handle in model.__dict__.pop("handles", []):
        handle.remove()
    model.__dict__["handles"] = [model[0].weight.register_hook(lambda grad: grad * (1 + at))]


def two_losses(model, x, y, at):
    out = model(x)
    F.cross_entropy(out, y).backward(retain_graph=True)
    return out.square().mean() * 0.9**at


def some_losses(model, x, y, at):
    return plain(model, x, y, at) + (model(x).abs().mean() / (1 + at) if at % 2 else 0)


def saved_on_the_way(model, x, y, at):
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.clone(), lambda packed: packed):
        return plain(model, x, y, at)


def done_again(model, x, y, at):
    return F.cross_entropy(checkpoint(model, x, use_reentrant=False), y)


#: loss, what is done before a step, which slice it takes, how often gradients are zeroed and to what; modules compiled.
LOOPS = {
    "slices": ((plain, nothing, slices, 1, True), [1]),
    "the last batch is smaller": ((plain, nothing, last_smaller, 1, True), [1, 2]),
    "gradients accumulate": ((plain, nothing, slices, 3, True), [1, 1]),
    "gradients are zeroed": ((plain, nothing, slices, 1, False), [1, 1]),
    "they accumulate and are zeroed": ((plain, nothing, slices, 3, False), [1, 1]),
    "parameters are frozen": ((plain, toggled, slices, 1, True), [1, 1]),
    "training and evaluation": ((plain, turns, slices, 1, True), [1, 1]),
    "hooks come and go": ((plain, hooked, slices, 1, True), [1]),
    "two losses of one graph": ((two_losses, nothing, slices, 1, True), [1, 1]),
    "a loss that is not always there": ((some_losses, nothing, slices, 1, True), [1, 1]),
    "saved-tensor hooks": ((saved_on_the_way, nothing, slices, 1, True), [1]),
    "checkpoints": ((done_again, nothing, slices, 1, True), [1]),
}


def loop(loss, before, taken, zeroed, to_none):
    def make():
        layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.25), nn.Linear(8, 3)
        model = nn.Sequential(*layers).double()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        steps = iter(range(STEPS))

        def step():
            at = next(steps)
            if at % zeroed == 0:
                optimizer.zero_grad(set_to_none=to_none)
            before(model, at)
            loss(model, DATA[taken(at)].double(), LABELS[taken(at)], at).backward()
            optimizer.step()
            schedule.step()

        return list(model.parameters()), step

    return make


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop(name):
    how, compiled = LOOPS[name]
    seen = same_gradients(loop(*how), steps=STEPS)
    assert [len(one.modules) for one in seen.programs] == compiled
    assert all(one.reasons == [] for one in seen.programs)
