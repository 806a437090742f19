"""Random graphs of kernels, matmuls, ATen calls, views and updates in place: native plan, Python plan, eager.

`FRAMESMITH_LONG=1` runs 2,000 of them.
"""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable

import pytest
import torch
from case_selection.sweeps import LONG
from graphs.tracing import mutating, trace
from torch import fx

from framesmith_backends import CpuBackend

Tensor = torch.Tensor
COUNT = 2000 if LONG else 80
SIZES = (2, 3, 4, 8, 16, 33)


def _matmuls(x: Tensor, y: Tensor, rng: random.Random) -> Tensor:
    first = x if rng.random() < 0.7 else x.t()
    inner = first.shape[1]
    options = [other for other in (y, y.t(), x, x.t()) if other.shape[0] == inner]
    second = rng.choice(options) if options else first.t()
    if rng.random() < 0.4:
        return torch.addmm(second[rng.randrange(second.shape[0])] * 0.5, first, second)
    return torch.mm(first, second)


#: Two matrices and a source of choices -> a matrix.
STEPS: tuple[Callable[[Tensor, Tensor, random.Random], Tensor], ...] = (
    _matmuls, _matmuls, _matmuls,
    lambda x, y, rng: x.tanh() * 0.5, lambda x, y, rng: x.relu() + 1, lambda x, y, rng: x.softmax(rng.randrange(2)),
    lambda x, y, rng: x - x.mean(rng.randrange(2), keepdim=True),
    lambda x, y, rng: x * y if x.shape == y.shape else -x,
    lambda x, y, rng: x.t(), lambda x, y, rng: x[rng.randrange(x.shape[0]) :],
    lambda x, y, rng: x[:, : rng.randint(1, 9)],
    lambda x, y, rng: x.chunk(2, rng.randrange(2))[0], lambda x, y, rng: x.contiguous().view(x.shape[1], x.shape[0]),
    lambda x, y, rng: x.cumsum(rng.randrange(2)) * 0.1, lambda x, y, rng: x.sort(rng.randrange(2))[0],
    lambda x, y, rng: torch.cat([x, x * 2], rng.randrange(2)) if x.numel() < 4000 else x,
)  # fmt: skip


def random_graph(seed: int) -> tuple[fx.GraphModule, list[Tensor]]:
    """A graph that writes to some of its inputs, and inputs for it."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(rng.choice(SIZES), rng.choice(SIZES), generator=generator) * 0.3 for _ in range(3)]
    choices = rng.random()
    written = rng.sample(range(3), rng.randint(0, 2))

    def function(*args: Tensor) -> tuple[Tensor, ...]:
        chance = random.Random(choices)
        values = list(args)
        for _ in range(14):
            x, y = values[-1 - chance.randrange(min(4, len(values)))], chance.choice(values)
            values.append(chance.choice(STEPS)(x, y, chance).clamp(-3, 3) if chance.random() < 0.3 else
                          chance.choice(STEPS)(x, y, chance))  # fmt: skip
        updates = [args[k] * 0.5 + values[-1].mean() for k in written]
        return (*updates, *(values[k] for k in sorted({len(values) - 1, *chance.sample(range(3, len(values)), 3)})))

    return mutating(function, inputs, written), inputs


def outcome(call: Callable[[list[Tensor]], object], inputs: list[Tensor]) -> list[Tensor]:
    """Return a graph's results, and its inputs afterwards."""
    values = [value.clone() for value in inputs]
    return [*call(list(values)), *values]  # type: ignore[misc]


def check(seed: int) -> None:
    gm, inputs = random_graph(seed)
    wanted = outcome(lambda values: gm(*values), inputs)
    python = CpuBackend().compile(gm, inputs, options={"launch": "python"})
    native = CpuBackend().compile(gm, inputs)
    for call in (python, native, native):
        for one, other in zip(outcome(call, inputs), wanted, strict=True):
            assert one.shape == other.shape and one.dtype == other.dtype, seed
            assert all(n < 2 or a == b for n, a, b in zip(one.shape, one.stride(), other.stride(), strict=True)), seed
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, msg=lambda m: f"seed {seed}: {m}")


@pytest.mark.sampled(27)
@pytest.mark.parametrize("first", range(0, COUNT, 10))
def test_plans_equal_eager(first: int) -> None:
    for seed in range(first, first + 10):
        check(seed)


def test_eight_threads_on_one_graph() -> None:
    torch.set_num_threads(2)
    gm, inputs = next((gm, inputs) for gm, inputs in map(random_graph, range(99)) if "addmm" in gm.code)
    call = CpuBackend().compile(gm, inputs)
    wanted = outcome(call, inputs)
    wrong: list[object] = []

    def work() -> None:
        for _ in range(60):
            found = outcome(call, inputs)
            wrong.extend(one for one, other in zip(found, wanted, strict=True) if not torch.equal(one, other))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_error_between_matmuls_is_eagers_and_leaves_nothing() -> None:
    weight = torch.randn(6, 6)

    def function(x: Tensor, at: Tensor) -> Tensor:
        h = torch.mm(x, x.t()) + 1
        return torch.mm(torch.index_select(h, 0, at), h)

    inputs = [weight, torch.tensor([0, 2, 5])]
    gm = trace(function, inputs)
    call = CpuBackend().compile(gm, inputs)
    torch.testing.assert_close(call(list(inputs))[0], function(*inputs))
    bad = torch.tensor([0, 2, 6])
    with pytest.raises(Exception) as eager:
        function(weight, bad)
    gc.collect()
    before = sum(issubclass(type(one), Tensor) for one in gc.get_objects())
    for _ in range(5):
        with pytest.raises(type(eager.value)) as ours:
            call([weight, bad])
        assert str(ours.value) == str(eager.value)
        del ours
    gc.collect()
    assert sum(issubclass(type(one), Tensor) for one in gc.get_objects()) <= before
    torch.testing.assert_close(call(list(inputs))[0], function(*inputs))
