"""`torch.vmap` in compiled functions and as a target, against eager mode: one graph, equal results and gradients."""

from __future__ import annotations

import functools
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import framesmith
from integration_tests.transforms.transforms import Program, Programs, Tensor, close, plain, run, t

pytestmark = pytest.mark.usefixtures("fresh")

vmap = torch.vmap
Pair = namedtuple("Pair", "p q")
PROGRAMS = Programs()
program = PROGRAMS.program


def simple(name: str, function: Callable[..., Any], *args: Callable[[], Any], **options: Any) -> None:
    """A program of one call of a mapped function; its arguments are made when it runs."""
    PROGRAMS.simple(name, vmap(function, **options), *args)


def m(*sizes: int) -> Callable[[], Tensor]:
    return lambda: t(*sizes)


simple("matmuls", lambda a, b: a @ b, m(3, 4), m(3, 4))
simple("dims", lambda a, w: (w @ a).relu(), m(4, 3), m(5, 4), in_dims=(1, None))
simple("negative dims", lambda a, b: a * b, m(4, 3), m(3, 4), in_dims=(-1, 0), out_dims=-1)
simple("dims of results", lambda a: (a.exp(), a.sum(), a.outer(a)), m(3, 4), out_dims=(1, 0, 2))
simple("matrices", lambda a, b: torch.einsum("ij,jk->ik", a, b), m(2, 3, 4), m(2, 4, 5))
simple("nested", vmap(lambda a, b: a * b, in_dims=(0, None)), m(3), m(4), in_dims=(None, 0))
simple("three levels", vmap(vmap(lambda a, b: a @ b)), m(2, 3, 4, 5), m(2, 3, 4, 5))
simple("the same for all", lambda a: (a * 2, torch.ones(3)), m(2, 3))
simple("an identity and a sum", lambda a: (a, a + 1), m(2, 3))
simple("views", lambda a: (a.t(), a[0], a.view(-1), a[:, ::2], a.unsqueeze(0)), m(2, 3, 4), out_dims=(0, 1, 0, 0, 2))
simple("one twice", lambda a: (lambda b: (b, b))(a * 2), m(2, 3))
simple("types", lambda a: (a + 1, a.float() / 2, a > 2, a.to(torch.int8)), lambda: torch.arange(6).view(2, 3))
simple("doubles", lambda a: a.log_softmax(-1), lambda: t(2, 3, dtype=torch.float64))
simple("halves", lambda a: (a @ a.t()).float(), lambda: t(2, 3, 4, dtype=torch.bfloat16))
simple("complex numbers", lambda a: torch.view_as_real(torch.fft.fft(a)), m(2, 8))
simple("lazy conjugates", lambda a: a * 2, lambda: torch.randn(2, 3, dtype=torch.complex64).conj())
simple("numbers", lambda a: a * 2 + 0.1, m(4))
simple("numbers of doubles", lambda a: a * 0.1, lambda: t(4, dtype=torch.float64))
simple("numbers and a type", lambda a: a * torch.ones(2, dtype=torch.float16), m(3))
simple("promotion", lambda a, b: a + b, lambda: torch.arange(3), m(3))
simple("shapes", lambda a: a.reshape(a.shape[0] * a.shape[1]).sum() / a.numel() + a.dim() + len(a), m(2, 3, 4))
simple("a detached part", lambda a: a * a.detach().sin(), m(3, 4))
simple("gradients asked of an example", lambda a: a * 2 if a.requires_grad else a * 3, m(3, 4))
simple("a permuted batch", lambda a: (a * 2, a.sum(0), a.contiguous()), lambda: t(4, 3, 5).permute(1, 2, 0))
simple("an expanded batch", lambda a: a * 2, lambda: t(1, 4).expand(3, 4))
simple("choices", lambda a: torch.where(a > 0, a, a * 0.1), m(3, 4))
simple("indices", lambda a, i: a[i], m(3, 4), lambda: torch.tensor([[0, 1], [2, 3], [1, 1]]))
simple("scatter", lambda a, i, s: a.scatter(0, i, s), m(3, 4), lambda: torch.tensor([[0, 1], [2, 3], [1, 0]]), m(3, 2))
simple("sorted", lambda a: (a.sort().values, a.topk(2).indices, a.cumsum(0).flip(0)), m(3, 4))
simple("linear algebra", lambda a: (torch.linalg.det(a), torch.linalg.inv(a + torch.eye(3) * 5)), m(4, 3, 3))
simple("joined", lambda a, b: torch.cat([a, b]).view(2, -1) + torch.stack([a, b]), m(2, 3), m(3), in_dims=(0, None))
simple("losses", lambda a, y: F.cross_entropy(a, y), m(2, 4, 5), lambda: torch.tensor([[0, 1, 2, 3], [4, 3, 2, 1]]))
simple("pools", lambda a: F.max_pool2d(a, 2), m(2, 3, 4, 4))
simple("made tensors", lambda a: a * torch.tensor([1.0, 2.0]) + torch.arange(2), m(3, 2))
simple("a parameter", lambda a: a * 2, lambda: nn.Parameter(torch.randn(3, 4)))
simple("lists", lambda a: [a, (a * 2, {"k": a + 1})], m(3, 4))
simple("no tensors", lambda a, n, s: a * n if s == "m" else a, m(3, 4), lambda: 2, lambda: "m", in_dims=(0, None, None))
simple("random numbers for each", lambda a: a + torch.rand(3) + torch.randn_like(a), m(2, 3), randomness="different")
simple("random numbers for all", lambda a: a + torch.rand(3), m(2, 3), randomness="same")
simple("dropout for each", lambda a: F.dropout(a, 0.5), m(4, 8), randomness="different")
simple("dropout for all", lambda a: F.dropout(a, 0.5), m(4, 8), randomness="same")
simple("chunks", lambda a: (a.sin(), a.sum()), m(7, 3), chunk_size=3, out_dims=(1, 0))
simple("a partial", functools.partial(torch.mul, torch.arange(4.0)), m(3, 4))
simple("torch's own", torch.dot, m(3, 4), m(3, 4))
simple("ordered", lambda d: OrderedDict((k, v * 2) for k, v in d.items()), lambda: OrderedDict(a=t(3, 2), b=t(3)))
simple("fields", lambda n: Pair(n.p * 2, n.q + n.p), lambda: Pair(t(3, 2), t(3, 2)))
simple(
    "structures",
    lambda d, e: {"s": d["a"] + e[0], "t": [e[1][0] * d["b"], d["a"].mean()]},
    lambda: {"a": t(3, 4), "b": t(4)},
    lambda: [t(3, 4), (t(4, 3),)],
    in_dims=({"a": 0, "b": None}, [0, (1,)]),
)


@program
def attention() -> Program:
    return vmap(F.scaled_dot_product_attention), [(t(2, 2, 4, 8), t(2, 2, 4, 8), t(2, 2, 4, 8))]


@program
def inside() -> Program:
    return lambda x: vmap(lambda a: a.sin() * 2)(x).cos(), [(t(2, 4),)]


@program
def keywords() -> Program:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return vmap(lambda a, k=1.0, w=None: a * k + w)(x, k=2.5, w=w)

    return f, [(t(3, 2), t(2))]


@program
def captured() -> Program:
    w = t(4, 4)
    return vmap(lambda a: ((a @ w).tanh(), w[0], w.requires_grad), out_dims=(0, None, None)), [(t(3, 4),)]


@program
def captured_itself() -> Program:
    w = t(3)

    def f(x: Tensor) -> tuple[Any, ...]:
        found = vmap(lambda a: (a + 1, w), out_dims=(0, None))(x)
        return *found, found[1] is w

    return f, [(t(2, 3),)]


@program
def modules() -> Program:
    return vmap(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))), [(t(3, 5, 4),)]


@program
def convolution() -> Program:
    return vmap(nn.Conv2d(3, 4, 3, padding=1)), [(t(2, 3, 5, 5),)]


@program
def batch_norm() -> Program:
    return vmap(nn.BatchNorm1d(4).eval()), [(t(3, 5, 4),)]


@program
def ensemble() -> Program:
    def net(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return F.linear(F.linear(x, p["w1"], p["b1"]).relu(), p["w2"])

    return vmap(net, in_dims=(0, None)), [({"w1": t(3, 8, 4), "b1": t(3, 8), "w2": t(3, 2, 8)}, t(5, 4))]


@program
def inner_captures_outer() -> Program:
    def f(x: Tensor, w: Tensor) -> Tensor:
        def outer(a: Tensor) -> Any:
            total = a.sum()
            return vmap(lambda b: b * total + w)(a)

        return vmap(outer)(x)

    return f, [(t(3, 4), t(1))]


@program
def loops() -> Program:
    def f(a: Tensor) -> Tensor:
        total: Any = 0
        for row in a:
            total = total + row.sin()
        for i in range(a.shape[0]):
            total = total * 0.5 + a[i]
        return total

    return vmap(f), [(t(2, 3, 4),)]


@program
def changes_its_own() -> Program:
    def f(a: Tensor) -> Tensor:
        made, entries = a * 2, {}
        made.add_(1)
        made[0] = 0
        for i in range(3):
            entries[i] = made.mul_(a) + i
        return sum(entries.values())

    return vmap(f), [(t(2, 3),)]


@program
def changes_its_arguments() -> Program:
    def f(d: dict[str, Tensor]) -> dict[str, Tensor]:
        d["c"] = d.pop("a") * 2
        return d

    return vmap(f), [({"a": t(2, 3), "b": t(2)},)]


@program
def without_gradients() -> Program:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            first = vmap(lambda a: a.sin())(x)
        return first, vmap(lambda a: a.cos())(x)

    return f, [(t(3, 4),)]


@program
def autocast() -> Program:
    def f(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return vmap(lambda a: a @ w)(x)

    return f, [(t(3, 4, 5), t(5, 2))]


@program
def writes_around() -> Program:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x + 1
        x.add_(1)
        y = vmap(lambda a: a.t())(x)
        x.mul_(3)
        y.add_(1)
        return y, vmap(lambda a: a + 1)(x)

    return f, [(plain(3, 4, 5),)]


@program
def made_outside() -> Program:
    mapped = vmap(lambda a: a.exp())
    return lambda x: mapped(x) + mapped(mapped(x) * 0.1), [(t(3, 4),)]


@program
def decorated() -> Program:
    @torch.vmap
    def f(a: Tensor, b: Tensor) -> Tensor:
        return a.dot(b)

    return lambda x, y: f(x, y) + 1, [(t(3, 4), t(3, 4))]


@program
def distances() -> Program:
    return lambda x, y: vmap(lambda a: vmap(lambda b: (a - b).norm())(y))(x), [(t(3, 2), t(4, 2))]


@program
def read_number() -> Program:
    w = torch.tensor(2.5)
    return lambda x: vmap(lambda a: a * w.item() + torch.tensor(3).item())(x), [(t(3, 2),)]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name: str) -> None:
    run(PROGRAMS[name]())
    stats = framesmith.stats()
    assert (stats["graphs"], stats["breaks"]) == (1, 0)


#: Those whose batching rules torch has for known sizes alone, in some release: see `test_known_sizes_alone`.
STATIC = frozenset({
    "shapes", "dropout for each", "dropout for all", "modules", "convolution", "scatter", "joined", "losses",
    "batch_norm", "attention", "three levels",
})  # fmt: skip


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in STATIC])
def test_symbolic_sizes(name: str) -> None:
    run(PROGRAMS[name](), dynamic=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", sorted(STATIC))
def test_known_sizes_alone(name: str) -> None:
    """As one graph, or eagerly, where torch's own rule asks for a size."""
    function, [args] = PROGRAMS[name]()
    torch.manual_seed(7)
    want = function(*args)
    torch.manual_seed(7)
    close(framesmith.compile(function, dynamic=True)(*args), want, [])


def test_batches_of_other_sizes() -> None:
    w = t(4, 4)
    function = vmap(lambda a: (a @ w).sin().sum(0))
    compiled = framesmith.compile(function, fullgraph=True)
    for size in (3, 5, 8, 1, 2):
        x = plain(size, 4)
        close(compiled(x), function(x), [])
    assert framesmith.stats()["graphs"] <= 3


def test_many_mapped_functions() -> None:
    x = plain(3, 4)
    for k in range(12):
        assert torch.equal(framesmith.compile(vmap(lambda a, k=k: a * k), fullgraph=True)(x), x * k)


def test_second_derivatives() -> None:
    function = vmap(lambda a: (a**3).sum())
    found = []
    for call in (function, framesmith.compile(function, fullgraph=True)):
        x = torch.arange(6.0).view(2, 3).requires_grad_()
        [first] = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.sum(), x)[0])
    assert torch.equal(*found)


def test_an_escaping_mapped_function_maps() -> None:
    made = framesmith.compile(lambda x: (x + 1, torch.vmap(torch.sin)))(plain(3))
    x = plain(2, 3)
    torch.testing.assert_close(made[1](x), x.sin())
