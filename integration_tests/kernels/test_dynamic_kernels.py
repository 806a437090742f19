"""Programs met with one size after another through the default backend, forward and backward: as eager, few graphs.

Each is compiled for any size, or for those that are met, in turn; in long runs, `FRAMESMITH_LONG=1`, all.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import framesmith
from integration_tests.harness.sweeps import a_part, in_turn
from tools.warm_process import run_module

#: Empty and single sizes have entries of their own; all others share one.
SIZES = ((3, 5), (4, 7), (64, 129), (0, 5), (5, 0), (17, 1000), (1, 6), (300, 64))
#: Graphs for the special sizes.
SPECIAL = 3

R = torch.randn


def rows(a: int, b: int) -> Sequence[Any]:
    return (R(a, b),)


def twice(a: int, b: int) -> Sequence[Any]:
    return R(a, b), R(a, b)


@dataclass(frozen=True)
class Program:
    name: str
    function: Callable[..., Any]
    inputs: Callable[[int, int], Sequence[Any]] = rows
    #: Graphs for all but the special sizes: the first as it is met, and the general one.
    graphs: int = 2


def masked(x: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(x.shape[1], device=x.device)
    return torch.where(positions[None, :] < x.shape[0], x, -1.0)


def norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.gelu(x), (16,), w, b)


PROGRAMS = (
    Program("elementwise", lambda x: (x * 2 + 1).relu() * x.sigmoid() - x / 3),
    Program("broadcasting", lambda x, y, z: x * y + z.exp(), lambda a, b: (R(a, b), R(b), R(a, 1))),
    Program("sums", lambda x: (x.sum(1), x.mean(0), x.sum())),
    Program("layer norm", norm, lambda a, b: (R(a, b, 16), R(16), R(16))),
    Program("concatenation", lambda x, y: torch.cat([x, y * 2], 1), twice),
    Program("pairs", lambda x: (x * 2).reshape(-1, 2).relu(), lambda a, b: (R(2 * a, 2 * a),)),
    Program("expansion", lambda x: x.unsqueeze(0).expand(4, -1, -1) + 1),
    Program("heads", lambda x: (x.view(*x.shape[:2], 2, 4).transpose(1, 2) + 1).flatten(1), lambda a, b: (R(a, b, 8),)),
    Program("linear", lambda x, w, c: torch.addmm(c, x, w).relu(), lambda a, b: (R(a, b), R(b, 8), R(8))),
    Program("matmuls", lambda x, y: torch.bmm(x, y) * 2, lambda a, b: (R(2, a, b), R(2, b, 8))),
    Program("embedding", lambda i, w: F.embedding(i, w) * 3, lambda a, b: (torch.randint(0, 50, (a, b)), R(50, 16))),
    Program("mask", masked),
    Program("moved", lambda x: (x.t() * 2, x.flip(1) + 1, torch.stack([x, x * 2], 1))),
    Program("created", lambda x: (torch.zeros(x.shape[0], 3) + 1, x.new_full((x.shape[1],), x.shape[0]))),
    Program(
        "numbers", lambda x, n, f: (x * n + f, x + x.shape[0] * 2), lambda a, b: (R(a, b), a * 3 + 2, 0.5 * b + 0.1)
    ),
    Program("item", lambda x, t: x * t.item() + 1, lambda a, b: (R(a, b), torch.tensor(a + b))),
    Program("indices", lambda x: (x > 0).nonzero() * 2),
)
#: These have no results, or no gradients, where there is nothing.
FULL = (
    Program("softmax", lambda x: (x.softmax(-1), x.log_softmax(0))),
    Program("moments", lambda x: (x.var(1), x.std(), x.amax(1), x.logsumexp(0))),
    Program("slices", lambda x: (x[1:, :-1] * 2, x[:, x.shape[1] // 2 :].exp())),
    Program("neighbours", lambda x: torch.stack([x, x.roll(1, 1)], -1).flatten(1).amax(-1)),
    Program("errors", lambda x, y: (F.mse_loss(x, y), F.smooth_l1_loss(x, y)), twice),
    Program("cross entropy", F.cross_entropy, lambda a, b: (R(a, b), torch.randint(0, b, (a,)))),
    Program("attention", lambda q: F.scaled_dot_product_attention(q, q * 2, q), lambda a, b: (R(2, 2, min(a, 40), 8),)),
    Program("convolution", lambda x, w: F.conv1d(x * 2, w).relu(), lambda a, b: (R(a, 3, b), R(4, 3, 2)), 3),
)

#: Those that are interpreted: one in eight, in long runs all.
INTERPRETED = a_part([*PROGRAMS, *FULL], 8)


def results(function: Callable[..., Any], inputs: Sequence[Any]) -> list[Any]:
    """Return the function's results, and the gradients of the inputs that have one."""
    fresh = [x.clone().requires_grad_(x.is_floating_point()) if isinstance(x, torch.Tensor) else x for x in inputs]
    found = function(*fresh)
    found = list(found) if isinstance(found, tuple) else [found]
    loss = sum((x * x.detach().cos()).sum() for x in found if isinstance(x, torch.Tensor) and x.requires_grad)
    if isinstance(loss, torch.Tensor):
        loss.backward()
    return found + [x.grad for x in fresh if isinstance(x, torch.Tensor)]


@pytest.mark.sampled(9)
@pytest.mark.filterwarnings("error::framesmith.FramesmithWarning")
@pytest.mark.parametrize(
    ("program", "dynamic"), in_turn([*PROGRAMS, *FULL], [True, None]), ids=lambda one: getattr(one, "name", str(one))
)
def test_sizes_one_after_another(program: Program, dynamic: bool | None) -> None:
    framesmith.reset()
    compiled = framesmith.compile(program.function, dynamic=dynamic)
    for a, b in SIZES:
        if program in FULL and min(a, b) < 2:
            continue
        torch.manual_seed(a + b)
        inputs = program.inputs(a, b)
        expected = results(program.function, inputs)
        for one, other in zip(results(compiled, inputs), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-4, equal_nan=True, msg=lambda m: f"{(a, b)}: {m}")
    assert framesmith.stats()["graphs"] <= program.graphs + (0 if program in FULL else SPECIAL)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("program", [*PROGRAMS, *FULL], ids=lambda p: p.name)
def test_sizes_one_after_another_on_a_gpu(program: Program) -> None:
    framesmith.reset()
    compiled = framesmith.compile(program.function)
    for a, b in SIZES:
        if program in FULL and min(a, b) < 2:
            continue
        torch.manual_seed(a + b)
        inputs = [x.cuda() if isinstance(x, torch.Tensor) else x for x in program.inputs(a, b)]
        for one, other in zip(results(compiled, inputs), results(program.function, inputs), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3, equal_nan=True)
    assert framesmith.stats()["graphs"] <= program.graphs + (0 if program in FULL else SPECIAL)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_interpreted_kernels_of_the_cuda_backend() -> None:
    """In a process of its own: Triton decides at import whether functions are interpreted."""
    done = run_module("integration_tests.kernels.interpret_triton", variables={"TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("ok ") == len([*INTERPRETED, *INTERPRETED_OF_SO_MANY])


SOME = torch.tensor([0.5, -1.0, 2.0])

#: Functions of unbacked numbers of rows and columns, which may be zero.
OF_SO_MANY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mean": lambda rows, columns: rows.mean(),
    "mean of each": lambda rows, columns: rows.mean(0) + columns.mean(1).sum(),
    "mean without nan": lambda rows, columns: rows.nanmean() + columns.nansum(),
    "mean expanded": lambda rows, columns: rows.mean(0).expand_as(rows).exp() - rows,
    "variance by hand": lambda rows, columns: rows.sub(rows.mean(0)).pow(2).mean(),
    "sums": lambda rows, columns: rows.sum(0) * 2 + columns.sum(1, keepdim=True).exp().sum(),
    "distance": lambda rows, columns: F.mse_loss(rows, rows * 2) + F.l1_loss(columns, columns.exp()),
    "layer norm": lambda rows, columns: F.layer_norm(rows, (3,)).mean(-1),
    "softmax": lambda rows, columns: F.softmax(rows, 0).sin().mean() + F.log_softmax(columns, -1).mean(),
    "normalised": lambda rows, columns: F.normalize(rows, dim=0).sum() + F.normalize(columns, dim=1).sum(),
    "matmul": lambda rows, columns: (rows @ rows.t()).mean(),
    "cumulative": lambda rows, columns: rows.cumsum(0).mean() + columns.cumsum(1).mean(),
    "extremes": lambda rows, columns: rows.amax(1).mean() + columns.exp().sum(1).log().mean(),
    "norm": lambda rows, columns: rows.norm() + rows.norm(dim=0).sum() + columns.norm(dim=1).sum(),
    "expanded": lambda rows, columns: rows.unsqueeze(1).expand(-1, 5, -1).mean() + columns.mean(),
    "read beside the sum, too": lambda rows, columns: (rows * SOME.exp()).sum(0) + SOME.exp() * SOME,
    "read before it, too": lambda rows, columns: (
        (rows + (SOME.sin() + SOME.exp())).amin(1).sum() + SOME.sin() + SOME.exp()
    ),
    "turned": lambda rows, columns: (rows.t() * columns.mean()).mean(),
}
INTERPRETED_OF_SO_MANY = a_part(OF_SO_MANY, 8)


def check_of_so_many(compute: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], backend: str) -> None:
    """Values and gradients as in eager mode, of some, none, one and all."""

    def function(x: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        return compute(x[row], x[:, column])

    framesmith.reset()  # the function is one code object for all that it computes
    compiled = framesmith.compile(function, dynamic=True, fullgraph=True, strict=True, backend=backend)
    for count in (2, 0, 1, 3, 0):
        found = []
        for run in (function, compiled):
            x = torch.arange(12.0).view(4, 3).sin().requires_grad_()
            result = run(x, torch.arange(4) < count, torch.arange(3) < count)
            found.append((result, *torch.autograd.grad(result.sum(), x)))
        for eager, own in zip(*found, strict=True):
            torch.testing.assert_close(own, eager, equal_nan=True)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("compute", OF_SO_MANY.values(), ids=OF_SO_MANY.keys())
def test_unbacked_sizes_may_be_zero(compute: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    check_of_so_many(compute, "auto")
