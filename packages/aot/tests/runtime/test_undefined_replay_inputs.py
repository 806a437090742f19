"""Inputs whose contents do not matter to an eager replay, such as running statistics: no call retains them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import compiled, graph_of, of, pair
from symbols import Examples

from framesmith_aot.runtime.derivatives.replay_inputs import Undef

pytestmark = pytest.mark.filterwarnings("ignore::framesmith_aot.errors.SecondDerivativeWarning")


def statistics(x: Any, w: Any, mean: Any, var: Any, count: Any) -> Any:
    count.add_(1)
    return F.batch_norm(x, mean, var, w[0], None, True, 0.1).exp(), mean.mul(count)


def an_average(x: Any, w: Any, mean: Any, var: Any, count: Any) -> Any:
    mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    var.copy_(mean)
    return ((x * w).tanh(), count + 2)


def nothing_of_them(x: Any, w: Any, mean: Any, var: Any, count: Any) -> Any:
    return ((x * w).tanh(),)


def statistics_that_count(x: Any, w: Any, mean: Any, var: Any, count: Any) -> Any:
    y = F.batch_norm(x, mean, var, w[0], None, True, 0.1)
    return (y.exp() * mean * count,)


def statistics_as_they_are(x: Any, w: Any, mean: Any, var: Any, count: Any) -> Any:
    return (F.batch_norm(x, mean, var, w[0], None, False, 0.1).exp(),)


def a_division(x: Any, w: Any, mean: Any, var: Any, count: Any) -> Any:
    count.copy_(12 // count)
    return ((x * w).tanh(),)


def an_index(x: Any, w: Any, mean: Any, var: Any, count: Any) -> Any:
    var.copy_(mean[count])
    return ((x * w).tanh(),)


def an_index_of_a_sum(x: Any, w: Any, mean: Any, var: Any, count: Any) -> Any:
    var.copy_(mean[count + 1])
    return ((x * w).tanh(),)


def classes(x: Any, w: Any, mean: Any, var: Any, count: Any) -> Any:
    return ((x * w).tanh(), F.one_hot(count, 4))


def a_part(x: Any, w: Any, mean: Any, var: Any, count: Any) -> Any:
    mean[1:].add_(1)
    return ((x * w).tanh(),)


def chances(x: Any, w: Any, mean: Any, var: Any, count: Any) -> Any:
    mean.copy_(torch.bernoulli(mean.sigmoid()))
    return (x * w * torch.rand_like(w)).tanh(), torch.bernoulli(mean)


#: Programs, and how many of their three buffers an eager replay takes with undefined contents.
CHANGING = [
    (statistics, 3), (an_average, 3), (nothing_of_them, 3), (statistics_that_count, 0), (statistics_as_they_are, 1),
    (a_division, 2), (an_index, 1), (an_index_of_a_sum, 1), (classes, 0), (a_part, 2), (chances, 2),
]  # fmt: skip


@pytest.mark.parametrize(("program", "free"), CHANGING, ids=[program.__name__ for program, _ in CHANGING])
def test_inputs_with_undefined_contents_are_not_retained(
    program: Callable[..., Any], free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def worst(undef: Undef) -> torch.Tensor:
        made.append(torch.empty_strided(undef.shape, undef.strides, dtype=undef.dtype, device=undef.device))
        return made[-1].fill_(float("nan") if undef.dtype.is_floating_point else 0 if program is a_division else 99)

    monkeypatch.setattr(Undef, "allocate", worst)

    def inputs() -> list[torch.Tensor]:
        return [*pair(), torch.full((4,), 0.5).double(), torch.ones(4).double(), torch.tensor([2, 1, 2, 1])]

    found: list[list[torch.Tensor]] = []
    for run in (program, of(program, *inputs())):
        x, w, *changed = inputs()
        torch.manual_seed(0)
        result = run(x, w, *changed)
        [grad] = torch.autograd.grad(result[0].sum(), x, create_graph=True)
        found.append([*result, *changed, grad, *torch.autograd.grad(grad.pow(2).sum(), [x, w])])
    torch.testing.assert_close(found[1], found[0])
    assert len(made) == free


def calls(run: Callable[[], Any], name: str) -> int:
    """Return the number of calls of an operator in `run`."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    return sum(event.name == name for event in profile.events())


def test_statistics_cost_no_call() -> None:
    inputs = [*pair(), torch.zeros(4).double(), torch.ones(4).double(), torch.tensor(0)]
    run = of(statistics, *inputs)
    run(*inputs)
    assert calls(lambda: run(*inputs), "aten::detach") == 0


def test_statistics_that_were_changed_since() -> None:
    def changed(mean: torch.Tensor, var: torch.Tensor, count: torch.Tensor) -> None:
        count.add_(5)
        mean.data.fill_(7)
        var.data.fill_(7)

    def freed(mean: torch.Tensor, var: torch.Tensor, count: torch.Tensor) -> None:
        count.untyped_storage().resize_(0)

    def called_again(mean: torch.Tensor, var: torch.Tensor, count: torch.Tensor) -> None:
        x, w = pair()
        with torch.no_grad():
            statistics(x * 3 + 1, w, mean, var, count)

    for change in (changed, freed, called_again):
        found: list[list[torch.Tensor]] = []
        for program in (statistics, None):
            x, w = pair()
            buffers = [torch.zeros(4).double(), torch.ones(4).double(), torch.tensor(0)]
            result = (program or of(statistics, x, w, *buffers))(x, w, *buffers)
            change(*buffers)
            [grad] = torch.autograd.grad(result[0].sum(), x, create_graph=True)
            change(*buffers)
            found.append([grad, *torch.autograd.grad(grad.pow(2).sum(), [x, w]), *buffers[:2]])
        torch.testing.assert_close(found[1], found[0])


def test_statistics_of_as_many_channels_as_a_call_has() -> None:
    def inputs(channels: int) -> list[torch.Tensor]:
        torch.manual_seed(channels)
        x, w = (torch.randn(3, channels, dtype=torch.float64) for _ in range(2))
        return [x, w, torch.zeros(channels).double(), torch.ones(channels).double(), torch.tensor(0)]

    examples = Examples()
    given = inputs(4)
    sizes = [examples.tensor(value) for value in given[:4]]
    for value in sizes[:2]:
        value.requires_grad_()
    run = compiled(graph_of(statistics), [*sizes, examples.tensor(given[4])])
    for channels in (4, 6):
        found: list[list[torch.Tensor]] = []
        for each in (statistics, run):
            x, w, *buffers = inputs(channels)
            x.requires_grad_(), w.requires_grad_()
            [grad] = torch.autograd.grad(each(x, w, *buffers)[0].sum(), x, create_graph=True)
            found.append([grad, *torch.autograd.grad(grad.pow(2).sum(), [x, w]), *buffers])
        torch.testing.assert_close(found[1], found[0])
