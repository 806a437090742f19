"""Graphs of symbolic sizes through the cpu backend: one compilation, right at every size its guards allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs.tracing_symbolic import takes, trace_symbolic
from sample_programs.samples import SAMPLES, Sample
from torch import fx

from framesmith_aten.contract import Backend
from framesmith_backends import CpuBackend

CPU = CpuBackend()


def compare(found: Sequence[Any], wanted: Sequence[Any], tolerance: float, where: object = "") -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted):
        if not isinstance(other, torch.Tensor):
            assert one == other and type(one) is type(other), where
            continue
        assert one.dtype == other.dtype and one.shape == other.shape, where
        for size, a, b in zip(one.shape, one.stride(), other.stride()):
            assert size == 1 or 0 in one.shape or a == b, where
        torch.testing.assert_close(
            one, other, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda m: f"{where}: {m}"
        )


def at_other_sizes(sample: Sample) -> list[Sample]:
    """The sample with its sizes changed: what was equal stays equal, 1 stays 1."""
    sizes = sorted({n for shape in sample.shapes for n in shape if n > 1})
    changes: list[Callable[[int], int]] = [
        lambda n: n + 2, lambda n: 2 * n, lambda n: 3 * n + 2 * sizes.index(n), lambda n: max(2, n // 2),
        lambda n: n + 15, lambda n: n + 16, lambda n: 4 * n,
    ]  # fmt: skip
    found = []
    for change in changes:
        shapes = tuple(tuple(change(n) if n > 1 else n for n in shape) for shape in sample.shapes)
        if sum(torch.Size(shape).numel() for shape in shapes) < 2_000_000:
            found.append(Sample(sample.name, sample.function, shapes, sample.dtype, sample.tolerance))
    return found


#: Samples that fix a size of their inputs, and so are for that size only.
FIXED = {"permuted", "layer norm", "bf16 norm", "layer norm grad", "norm across", "bf16 norm across"}


@pytest.mark.sampled(36)
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.name)
def test_sample_at_many_sizes(sample: Sample) -> None:
    inputs = sample.inputs()
    gm = trace_symbolic(sample.function, inputs)
    call = CPU.compile(gm, inputs)
    compare(call(list(inputs)), eager(sample.function, inputs), sample.tolerance)
    served = 0
    for other in at_other_sizes(sample):
        values = other.inputs()
        if takes(gm, values):
            served += 1
            compare(call(list(values)), eager(sample.function, values), 4 * sample.tolerance, other.shapes)
    assert served >= 4 or sample.name in FIXED


def eager(function: Callable[..., Any], inputs: Sequence[Any]) -> tuple[Any, ...]:
    result = function(*inputs)
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


#: Sizes of two dimensions: the first traced, with what is empty, single, odd, large, or a multiple of the lanes.
SIZES = (
    (3, 5),
    (4, 7),
    (16, 32),
    (1, 6),
    (6, 1),
    (0, 5),
    (5, 0),
    (1, 1),
    (33, 257),
    (5, 1000),
    (700, 3),
    (64, 64),
    (2, 2),
)

R, randint = torch.randn, torch.randint


def rows(a: int, b: int) -> tuple[torch.Tensor, ...]:
    return (R(a, b),)


def columns(a: int, b: int) -> tuple[torch.Tensor, ...]:
    return (R(b, a).t(),)


def gaps(a: int, b: int) -> tuple[torch.Tensor, ...]:
    return (R(a, 2 * b + 3)[:, 1 : 2 * b + 1 : 2],)


def spread(a: int, b: int) -> tuple[torch.Tensor, ...]:
    return (R(a, 1).expand(a, b),)


@dataclass(frozen=True)
class Program:
    """A function, what makes its inputs at two sizes, and for how many of `SIZES` it is compiled at most."""

    name: str
    function: Callable[..., Any]
    inputs: Callable[[int, int], Sequence[Any]] = rows
    compilations: int = 6


def half_and_half(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[1] // 2
    return torch.cat([-x[:, half:], x[:, :half]], 1) * 2


def counted(x: torch.Tensor) -> torch.Tensor:
    indices = torch.arange(x.shape[1])
    return torch.where(indices[None, :] < x.shape[0], x, -1.0) + torch.arange(x.shape[0])[:, None]


def loss(x: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return F.cross_entropy(x, wanted), F.nll_loss(x.log_softmax(1), wanted, reduction="none")


def windows(x: torch.Tensor) -> torch.Tensor:
    padded = F.pad(x, (2, 2))
    return padded[:, 2:-2] + padded[:, 4:] * 2 - padded[:, : x.shape[1]]


def grid(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b = x.shape
    return (x[:, :, None] + x[:, None, :]).reshape(a, b * b).sum(1), x.repeat(2, 3).view(2, a, 3, b).transpose(1, 2) + 1


def classes(a: int, b: int) -> Sequence[Any]:
    return R(a, b), torch.randint(0, max(b, 1), (a,)) if b else torch.zeros(a, dtype=torch.int64)


PROGRAMS = (
    Program("words", lambda x, i: F.embedding(i, x) * 2, lambda a, b: (R(7, b), randint(0, 7, (2, a)))),
    Program("gathered in rows", lambda x, i: x.gather(1, i) + 1, lambda a, b: (R(a, b), randint(0, max(b, 1), (a, b)))),
    Program(
        "gathers", lambda x, i: (x[i] + 1, x[i, -i % 3], x.take(-i)), lambda a, b: (R(7, 3), randint(0, 7, (a, b))), 8
    ),
    Program("rows of what changes", lambda x, i: x[i] * 2, lambda a, b: (R(a, b), randint(-a, max(a, 1), (a,)))),
    Program(
        "sums at indices",
        lambda x, i: (torch.zeros(7, 3).index_add(0, i, x[i] + 1), x.index_put((i,), x[i], accumulate=True)),
        lambda a, b: (R(7, 3), randint(0, 7, (a,))),
    ),
    Program(
        "sums in rows",
        lambda x, i, s: x.scatter_add(1, i, s * 2),
        lambda a, b: (R(a, 7), randint(0, 7, (a, b)), R(a, b)),
    ),
    Program(
        "sums of rows", lambda x, i, s: x.index_add(0, i, s * 2), lambda a, b: (R(7, b), randint(0, 7, (a,)), R(a, b))
    ),
    Program(
        "rows replaced",
        lambda x, i, s: (x.index_copy(0, i, s * 2), x.index_put((i,), s) + 1, x.index_fill(0, i, 3.0)),
        lambda a, b: (R(a + 2, b), torch.randperm(a), R(a, b)),
        7,
    ),
    Program(
        "replaced in rows",
        lambda x, i, s: (x.scatter(1, i, s * 2), x.scatter(1, i, 1.0) + 1),
        lambda a, b: (R(a, 7), randint(0, 7, (a, b)), R(a, b)),
    ),
    Program(
        "columns with indices of their own",
        lambda x, i, s: (x.scatter(0, i, s * 2), x.scatter_add(0, i, s)),
        lambda a, b: (R(7, b), randint(0, 7, (a, b)), R(a, b)),
    ),
    Program("masks", lambda x, y: x.index_put((y > 0,), x[0, 0]) + 1, lambda a, b: (R(a, b), R(a, b))),
    Program("as long as the shorter side", lambda x: x.diagonal().sum()),
    Program("pointwise", lambda x: (x * 2 + 1).relu() * x.sigmoid() - x / 3),
    Program("columns", lambda x: (x * 2 + 1).relu(), columns),
    Program("gaps", lambda x: x.exp() + 1, gaps),
    Program("spread", lambda x: x * 2, spread),
    Program("columns and rows", lambda x, y: x + y, lambda a, b: (*rows(a, b), *columns(a, b))),
    Program("broadcast", lambda x, y, z: x * y + z.exp(), lambda a, b: (R(a, b), R(b), R(a, 1))),
    Program("sums", lambda x: (x.sum(1), x.mean(0), x.sum(), x.prod(0), (x > 0).any(1))),
    Program("sums of columns", lambda x: (x.sum(1), x.mean(0), x.sum(), x.square().mean()), columns),
    Program("extremes", lambda x: (x.amax(1), x.amin(0), x.max(), x.logsumexp(1))),
    Program("softmax", lambda x: (x.softmax(1), x.log_softmax(0))),
    Program("softmax of gaps", lambda x: x.softmax(1), gaps),
    Program("moments", lambda x: (x.var(1), x.std(0), x.var(unbiased=False))),
    Program("layer norm", lambda x: F.layer_norm(x, (x.shape[1],))),
    Program("layer norm of fixed rows", lambda x: F.layer_norm(x, (16,)), lambda a, b: (R(a, b, 16),)),
    Program("halves", half_and_half, rows, 8),
    Program("cat", lambda x, y, z: torch.cat([x, y, z * 2], 1), lambda a, b: (R(a, b), R(a, 3), R(a, b + 1)), 7),
    Program("stack", lambda x: (torch.stack([x, x * 2], 1), torch.stack([x, -x], -1))),
    Program("slices", lambda x: (x[1:] * 2, x[:, :-1] + 1, x[:, x.shape[1] // 2 :].exp(), x[::2] + x[::2]), rows, 7),
    Program("beyond", lambda x: (x[5:] + 1, x[:, :4] * 2, x[-3:].exp()), rows, 10),
    Program("pad", lambda x: F.pad(x, (1, 2, 3, 0), value=2.0) * 2),
    Program("windows", windows),
    Program("views", lambda x: (x.view(-1) + 1, x.reshape(x.shape[1], x.shape[0]) * 2, x.t().reshape(-1) + 1), rows, 7),
    Program(
        "heads",
        lambda x: (x.view(*x.shape[:2], 2, 4).transpose(1, 2) + 1).reshape(x.shape[0], -1),
        lambda a, b: (R(a, b, 8),),
    ),
    Program("expand", lambda x: x.unsqueeze(0).expand(4, -1, -1) + 1),
    Program("grid", grid),
    Program("flip", lambda x: (x.flip(1) * 2, x.flip(0, 1) + 1)),
    Program("triangles", lambda x: (x.tril() * 2, x.triu(1) + 1)),
    Program("counted", counted),
    Program(
        "created",
        lambda x: (torch.zeros(x.shape[0], 3) + 1, x.new_ones(x.shape[1]), torch.full((x.shape[0],), x.shape[1])),
    ),
    Program("sizes as values", lambda x: (x * x.shape[0] + x.shape[1], x / x.numel(), x**2 + x.shape[1])),
    Program(
        "squared errors",
        lambda x, y: (F.mse_loss(x, y), F.smooth_l1_loss(x, y), F.l1_loss(x, y)),
        lambda a, b: (R(a, b), R(a, b)),
    ),
    Program("losses", loss, classes),
    Program("cumulative products", lambda x, y: (x @ y).tanh() + x.shape[0], lambda a, b: (R(a, b), R(b, 6))),
    Program("embedding", lambda i, w: F.embedding(i, w) * 3, lambda a, b: (torch.randint(0, 50, (a, b)), R(50, 16))),
    Program("sorted", lambda x: (x.sort(1).values * 2, x.cumsum(1) + 1, x.argsort(0) + 1)),
    Program(
        "integers", lambda x: (x * 3 // 5 % 4, x.sum(1), (x > 0).sum(0)), lambda a, b: (torch.randint(-9, 9, (a, b)),)
    ),
    Program("half", lambda x: (x.softmax(1), x.sum(0), x * x.shape[1]), lambda a, b: (R(a, b).bfloat16(),)),
    Program(
        "gradients",
        lambda x, g: torch.func.vjp(lambda v: F.gelu(v).softmax(1) * v.mean(0), x)[1](g),
        lambda a, b: (R(a, b), R(a, b)),
    ),
    Program(
        "gradients of views",
        lambda x, g: torch.func.vjp(lambda v: F.pad(v[:, 1:], (0, 1)) + v.select(1, -1)[:, None], x)[1](g),
        lambda a, b: (R(a, b), R(a, b)),
    ),
    Program("counts of numbers", lambda x, n: (x * n, x + n / 2, x**n), lambda a, b: (R(a, b), a * 3 + 2)),
    Program("nonzero", lambda x: (x.nonzero() * 2, x.nonzero().shape[0] + 1)),
    Program("selected", lambda x: (x[x > 0] * 2, x[x > 0].sum())),
    Program(
        "numbers of tensors",
        lambda x, n, f: (x * n.item() + f.item(), n.item() + 1, torch.arange(n.item()) * 2),
        lambda a, b: (R(a, b), torch.tensor(a + b), torch.tensor(a / 7)),
    ),
)


def compilations(
    program: Program, backend: Backend, sizes: Sequence[tuple[int, int]] = SIZES, device: str = "cpu"
) -> int:
    """Compare with eager at every size that the program has; the number of graphs that took."""
    compiled: list[tuple[fx.GraphModule, Callable[..., Any]]] = []
    for a, b in sizes:
        torch.manual_seed(a + b)
        inputs = [x.to(device) if isinstance(x, torch.Tensor) else x for x in program.inputs(a, b)]
        try:  # on the CPU first: elsewhere an index out of bounds ends the process's use of the device
            eager(program.function, program.inputs(a, b))
        except (RuntimeError, IndexError):
            continue  # no sizes for this program
        with torch.device(device):
            wanted = eager(program.function, inputs)
            call = next((call for gm, call in compiled if takes(gm, inputs)), None)
            if call is None:
                gm = trace_symbolic(program.function, inputs)
                call = backend.compile(gm, inputs)
                compiled.append((gm, call))
        tolerance = 2e-2 if any(x.dtype == torch.bfloat16 for x in inputs if isinstance(x, torch.Tensor)) else 1e-4
        compare(call(list(inputs)), wanted, tolerance, (a, b))
    return len(compiled)


@pytest.mark.sampled(36)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_program_at_all_sizes(program: Program) -> None:
    assert 1 <= compilations(program, CPU) <= program.compilations


def test_a_number_too_large_for_a_kernel_is_an_error() -> None:
    call = CPU.compile(trace_symbolic(lambda x, n: x * n, [R(3), 5]), [R(3), 5])
    with pytest.raises(OverflowError):
        call([R(3), 1 << 70])
    x = R(3)
    assert torch.equal(call([x, -(1 << 62)])[0], x * -(1 << 62))


def test_rows_that_outgrow_what_was_traced() -> None:
    function = lambda x: (x.softmax(-1), x.softmax(0), x.log_softmax(0).sum())  # noqa: E731
    call = CPU.compile(trace_symbolic(function, [R(3, 5)]), [R(3, 5)])
    for shape in ((2, 300_000), (300_000, 2), (1000, 1000)):
        x = R(*shape)
        compare(call([x]), function(x), 1e-4, shape)


def test_nothing_is_left_to_aten_that_static_sizes_would_not_leave() -> None:
    function = lambda x, y: F.layer_norm(torch.cat([x, y], 1)[:, 1:], (y.shape[1] + x.shape[1] - 1,)).relu()  # noqa: E731
    lowering = CPU.explain(trace_symbolic(function, [R(3, 5), R(3, 6)])).lowering
    assert set(lowering.notes.values()) <= {"no rule"}
    assert not [call for call in lowering.program.calls.values() if call.size is None]


def beyond_64_bits(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n = x.shape[0]
    hashed = (n * 747796405 + 12345) * 277803737 * n * n % 1000003
    return x[:3] + hashed, x[:2] * ((n**4) // (n + 1)), x.new_zeros(n**4 % 5) + x[0], x[:3] - max(n**5 - 7, 3) % 11


def test_numbers_that_64_bits_do_not_hold_on_the_way() -> None:
    """Dividends are computed by Python: kernels wrap around."""
    inputs = [torch.arange(5)]
    gm = trace_symbolic(beyond_64_bits, inputs)
    call = CPU.compile(gm, inputs)
    for n in (5, 70_000, 90_001, 7):
        values = [torch.arange(n)]
        if takes(gm, values):
            compare(call(list(values)), eager(beyond_64_bits, values), 0.0, n)
    assert takes(gm, [torch.arange(70_000)])


def test_lengths_of_which_guards_say_that_they_are_equal() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x[:, None].expand(-1, x.shape[0] % 4, -1).clone() * 2

    for n in (5, 6):
        inputs = [torch.randn(n, 3)]
        gm = trace_symbolic(function, inputs)
        stages = CPU.explain(gm)
        compare(CPU.compile(gm, inputs)(list(inputs)), eager(function, inputs), 0.0, n)
        assert not [why for why in stages.lowering.notes.values() if "rule" in why]
