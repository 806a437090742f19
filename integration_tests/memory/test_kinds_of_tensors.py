"""Tensors that are not plain strided memory: lazy conjugates and signs, sparse, quantized, nested and others.

As arguments, results and in between, beside eager: graphs where these can be in one, quiet breaks where not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from integration_tests.memory.kinds_of_tensors import Make, Program, check


def program(fn: Callable[..., Any], *calls: Make) -> Callable[[], Program]:
    return lambda: (fn, calls)


def z(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (3,)), dtype=torch.cfloat)


def negative(*shape: int) -> torch.Tensor:
    return z(*shape).conj().imag


def of_sizes(make: Callable[[int], torch.Tensor], sizes: Sequence[int] = (2, 3, 4, 5)) -> list[Make]:
    return [lambda size=size: (make(size),) for size in sizes]  # type: ignore[misc]


def changed_by_a_view(x: torch.Tensor) -> Any:
    y = x.conj()
    y.add_(1j)
    return x * 2, y


def changed_imaginary(x: torch.Tensor) -> Any:
    x.imag.mul_(3)
    return x.conj().imag, x


def changed(x: torch.Tensor) -> Any:
    x.mul_(2)
    return x.sin() + 1


def changed_in_parts(x: torch.Tensor) -> Any:
    x.view(-1)[2:5].mul_(3)
    x[0].zero_()
    return x.sum()


def items_set(x: torch.Tensor) -> Any:
    x[1] = 2j
    x[0] = x[2]
    return x


def halves(x: torch.Tensor) -> Any:
    one, two = x.conj().chunk(2)
    one.mul_(2j)
    return one, two, x


def broken(x: torch.Tensor) -> Any:
    y = x.conj()
    y[0] = 1
    print(end="")
    y[1] = 2j
    return y, x


def detached(x: torch.Tensor) -> Any:
    y = x.conj().detach()
    y.mul_(2)
    return x + 0, y


def changed_beside(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.add_(1)
    return x * y


def inference(make: Callable[[], torch.Tensor]) -> Make:
    def made() -> tuple[Any, ...]:
        with torch.inference_mode():
            return (make(),)

    return made


def both(x: torch.Tensor) -> tuple[Any, ...]:
    return x, x.conj()


class Rotated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(z())
        self.register_buffer("phase", z().conj())

    def forward(self, x: torch.Tensor) -> Any:
        self.phase.mul_(1j)
        return self.weight.conj() * x + self.phase


class Rebound(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", z())

    def forward(self, x: torch.Tensor) -> Any:
        self.state = (self.state * x).conj()
        return self.state


class Negative(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.weight = nn.Parameter(torch._neg_view(torch.randn(4, 4)))


LAZY: dict[str, Callable[[], Program]] = {
    "conjugate": program(lambda x: x * 2, lambda: (z().conj(),), lambda: (z(),), lambda: (z().conj(),)),
    "conjugate leaf": program(lambda x: (x * 2).sin(), lambda: (z().conj().requires_grad_(),)),
    "conjugate of a leaf": program(lambda x, y: x @ y, lambda: both(z(3, 3).requires_grad_())),
    "views": program(lambda x: (x[1:], x.conj(), x.view(3, 1), x), lambda: (z().conj(),)),
    "bits of results": program(
        lambda x: (x.conj(), (x * 2).conj(), (x * 2).conj().imag, x.resolve_conj(), x.conj().resolve_conj()),
        lambda: (z(),),
        lambda: (z().conj(),),
    ),
    "negative": program(lambda x: (x + 1, x[1:], x), lambda: (negative(),), lambda: (z().imag,)),
    "negative in kernels": program(lambda x: (x.sin() + x * 2).sum(), lambda: (negative(4),)),
    "negative leaf": program(lambda x: (x.sin() @ x).relu(), lambda: (negative(4, 4).requires_grad_(),)),
    "views of a negative": program(
        lambda x: (x.view(-1), x.t(), x[1:, ::2], x.reshape(2, 8), x.expand(2, 4, 4), x.diagonal()),
        lambda: (negative(4, 4),),
    ),
    "adjoint": program(
        lambda x: (x.H, x.adjoint(), x.mH, (x + 1).H, x.H @ x), lambda: (z(2, 3),), lambda: (z(3, 2).H,)
    ),
    "asked for": program(
        lambda x: (x.is_conj(), x.is_neg(), x + 1 if x.is_conj() else x - 1), lambda: (z(),), lambda: (z().conj(),)
    ),
    "resolved, the same": program(
        lambda x: (x.resolve_conj() is x, x.resolve_neg() is x, x.conj() is x, x.contiguous() is x),
        lambda: (z(),),
        lambda: (z().conj(),),
        lambda: (torch.ones(3),),
    ),
    "as real": program(lambda x: torch.view_as_real(x), lambda: (z(),), lambda: (z().conj(),)),
    "resolved, as real": program(lambda x: torch.view_as_real(x.resolve_conj()), lambda: (z(),), lambda: (z().conj(),)),
    "changed": program(lambda x: x.mul_(2 + 1j), lambda: (z().conj(),)),
    "changed by a view": program(changed_by_a_view, lambda: (z(),), lambda: (z().conj(),)),
    "changed imaginary parts": program(changed_imaginary, lambda: (z(),), lambda: (z().conj(),)),
    "changed in parts": program(changed_in_parts, lambda: (negative(4, 4),)),
    "changed with symbolic sizes": program(changed, *of_sizes(negative)),
    "changed beside its conjugate": program(changed_beside, lambda: both(z())),
    "copied": program(
        lambda x, y: x.copy_(y), lambda: (z(), z().conj()), lambda: (z().conj(), z()), lambda: (z().conj(), z().conj())
    ),
    "items set": program(items_set, lambda: (z().conj(),)),
    "halves": program(halves, lambda: (z(4),), lambda: (z(4).conj(),)),
    "broken": program(broken, lambda: (z(),)),
    "detached": program(detached, lambda: (z(),), lambda: (z().conj(),)),
    "symbolic sizes": program(lambda x: (x * 2 + x.shape[0], x.reshape(-1)), *of_sizes(lambda n: z(n, 2).conj())),
    "inference tensor, negative": program(lambda x: (x.sin() * 2, x[1:]), inference(lambda: torch._neg_view(z().real))),
    "inference tensor, conjugate": program(lambda x: (x.real, x.conj(), x.is_conj()), inference(lambda: z().conj())),
    "integers": program(lambda x: (x + 1, x // 2, x.sum()), lambda: (torch._neg_view(torch.arange(4)),)),
    "indices": program(
        lambda x, i: (x[i], torch.gather(x, 0, i)),
        lambda: (torch._neg_view(torch.randn(4)), torch._neg_view(-torch.arange(4))),
    ),
    "normed": program(
        lambda x: F.layer_norm(x, [4]).softmax(-1), lambda: (torch._neg_view(torch.randn(2, 4)).requires_grad_(),)
    ),
    "rotations": program(
        lambda x, r: torch.view_as_real(torch.view_as_complex(x.reshape(2, 2, 2)) * r.conj()).flatten(1),
        lambda: (torch.randn(2, 4), z(2)),
        lambda: (torch.randn(2, 4).requires_grad_(), z(2).conj()),
    ),
    "solved": program(
        lambda x: (torch.linalg.solve(x, x.mH), torch.linalg.inv(x.mH), x.mH.mH is x),
        lambda: ((z(3, 3) + 3 * torch.eye(3)).mH,),
    ),
    "module": lambda: (Rotated(), [lambda: (z(),), lambda: (z().conj(),)]),
    "module's state": lambda: (Rebound(), [lambda: (z(),)] * 4),
    "parameter": lambda: (Negative(), [lambda: (torch.randn(2, 4),)] * 2),
}


def normed_with_negative_statistics() -> nn.Module:
    norm = nn.BatchNorm1d(3)
    norm.running_mean = torch._neg_view(torch.randn(3))
    return norm


LAZY |= {
    "statistics": lambda: (normed_with_negative_statistics(), [lambda: (torch.randn(4, 3),)] * 2),
    "convolution": program(
        lambda x, w: F.conv2d(x, w),
        lambda: (negative(1, 2, 5, 5).requires_grad_(), negative(3, 2, 3, 3).requires_grad_()),
    ),
    "attention": program(
        lambda q: F.scaled_dot_product_attention(q, q, q), lambda: (negative(1, 2, 4, 8).requires_grad_(),)
    ),
    "sums": program(
        lambda x: (x.cumsum(0), x.prod(0), x.mean(), x.norm()),
        lambda: (z(4).conj(),),
        lambda: (z(4).conj().requires_grad_(),),
    ),
    "numbers": program(lambda x: (x.sum().item(), x.tolist(), x.half(), x.int()), lambda: (negative(4),)),
    "many at once": program(lambda a, b: torch._foreach_add([a, b], 1.0), lambda: (negative(4), torch.randn(3))),
    "physically conjugate": program(lambda x: x.conj_physical_(), lambda: (z().conj(),), lambda: (z(),)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", LAZY)
def test_lazy_conjugates_and_signs(name: str) -> None:
    counts = check(LAZY[name])
    assert counts["graphs"] or name == "as real"


COO_INDICES = ((0, 1, 3), (2, 0, 1))


def coo() -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor(COO_INDICES), torch.ones(3), (4, 4))


def quantized(scale: float = 0.1) -> torch.Tensor:
    return torch.quantize_per_tensor(torch.linspace(-2, 2, 8), scale, 10, torch.quint8)


def quantize(x: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(x, 0.1, 10, torch.quint8)


def by_channel(x: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_channel(x, torch.tensor([0.1, 0.2]), torch.tensor([0, 3]), 0, torch.qint8)


def nested(layout: torch.layout = torch.strided) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=layout)


def sparse_changed(s: torch.Tensor, v: torch.Tensor) -> Any:
    s.mul_(2)
    return s.to_dense() + v


def part_of_nested(n: torch.Tensor, x: torch.Tensor) -> Any:
    y = x * 2
    return y + n.unbind()[0].sum()


class Neighbours(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edges", coo())
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return torch.sparse.mm(self.edges, self.linear(x)).relu()


EIGHT: Make = lambda: (torch.randn(8),)  # noqa: E731
OTHERS: dict[str, Callable[[], Program]] = {
    "sparse, made": program(
        lambda i, v, x: torch.sparse.mm(torch.sparse_coo_tensor(i, v, (4, 4)), x).sin(),
        lambda: (torch.tensor(COO_INDICES), torch.ones(3, requires_grad=True), torch.ones(4, 2)),
    ),
    "sparse argument": program(lambda s, x: torch.sparse.mm(s, x).sin(), lambda: (coo(), torch.ones(4, 2))),
    "sparse argument with a gradient": program(
        lambda s, x: torch.sparse.mm(s, x).sin(), lambda: (coo().requires_grad_(), torch.ones(4, 2, requires_grad=True))
    ),
    "sparse result": program(
        lambda x: x.to_sparse(), lambda: (torch.eye(3),), lambda: (torch.eye(3).requires_grad_(),)
    ),
    "coalesced": program(lambda s: s.coalesce().values() * 2, lambda: (coo(),)),
    "rows": program(lambda x, y: (x.to_sparse_csr() @ y, x.to_sparse_csr()), lambda: (torch.eye(3), torch.ones(3, 2))),
    "columns": program(lambda x: x.to_sparse_csc().to_dense() + 1, lambda: (torch.eye(4),)),
    "blocks": program(lambda x: x.to_sparse_bsr((2, 2)).to_dense() + 1, lambda: (torch.eye(4),)),
    "rows as an argument": program(
        lambda s, y: (s @ y).sin(), lambda: (torch.eye(3).to_sparse_csr(), torch.ones(3, 2))
    ),
    "made dense": program(lambda s: s.to_dense() + 1, lambda: (coo(),), lambda: (coo().requires_grad_(),)),
    "sparse, changed": program(sparse_changed, lambda: (coo(), torch.ones(4))),
    "sparse, asked": program(
        lambda s: (s.is_sparse, s.layout, s.sparse_dim(), s._nnz(), s.is_coalesced(), s.shape), lambda: (coo(),)
    ),
    "masked": program(lambda x: x.sparse_mask(coo().coalesce()).to_dense() + x, lambda: (torch.ones(4, 4),)),
    "sparse buffer": lambda: (Neighbours(), [lambda: (torch.ones(4, 3),)] * 2),
    "quantized and back": program(lambda x: quantize(x).dequantize() * 2, EIGHT),
    "quantized, copied and cut": program(lambda x: (quantize(x).clone(), quantize(x)[2:5].dequantize()), EIGHT),
    "quantized result": program(lambda x: (quantize(x + 1), x * 2), EIGHT),
    "quantized, viewed": program(lambda x: quantize(x).view(2, 4).dequantize() * 2, EIGHT),
    "quantized, relu": program(lambda x: F.relu(quantize(x)).dequantize(), EIGHT),
    "quantized, integers": program(lambda x: quantize(x).int_repr() * 2, EIGHT),
    "quantized, scale": program(lambda x: x * quantize(x).q_scale() + quantize(x).q_zero_point(), EIGHT),
    "quantized to 32 bits": program(
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint32).dequantize() * 2, EIGHT
    ),
    "quantized by channel": program(lambda x: by_channel(x).dequantize() * 2, lambda: (torch.randn(2, 4),)),
    "quantized by range": program(
        lambda x: torch.quantize_per_tensor_dynamic(x, torch.quint8, False).dequantize() + 1, EIGHT
    ),
    "quantized argument": program(
        lambda t: t.dequantize() + 1, lambda: (quantized(),), lambda: (quantized(0.2),), lambda: (quantized(),)
    ),
    "quantized argument, asked": program(
        lambda t, x: x * t.q_scale() + t.q_zero_point(), lambda: (quantized(), torch.ones(2))
    ),
    "quantized argument, joined": program(lambda t: torch.cat([t, t]).dequantize() + 1, lambda: (quantized(),)),
    "quantized argument by channel": program(lambda t: t.dequantize() * 2, lambda: (by_channel(torch.randn(2, 4)),)),
    "quantized in training": program(
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255) * 2,
        lambda: (torch.randn(8).requires_grad_(),),
    ),
    "nested argument": program(lambda n: n * 2, lambda: (nested(),), lambda: (nested(),)),
    "nested, padded": program(lambda n: torch.nested.to_padded_tensor(n, 0.0) + 1, lambda: (nested(),)),
    "nested, made": program(
        lambda a, b: torch.nested.as_nested_tensor([a, b]).to_padded_tensor(0.0) + 1,
        lambda: (torch.randn(2, 3), torch.randn(3, 3)),
        lambda: (torch.randn(2, 3).requires_grad_(), torch.randn(3, 3)),
    ),
    "nested, asked": program(lambda n: (n.is_nested, n.size(0), n.dim()), lambda: (nested(),)),
    "part of a nested one": program(part_of_nested, lambda: (nested(), torch.randn(3))),
    "jagged argument": program(lambda n: (n * 2).values() + 1, lambda: (nested(torch.jagged),)),
    "jagged, made": program(
        lambda v, o: F.layer_norm(torch.nested.nested_tensor_from_jagged(v, o), [4]).values(),
        lambda: (torch.ones(5, 4), torch.tensor([0, 2, 5])),
        lambda: (torch.ones(5, 4).requires_grad_(), torch.tensor([0, 2, 5])),
    ),
    "of a library": program(lambda t: t.to_mkldnn().relu().to_dense() + 1, lambda: (torch.randn(3, 4),)),
    "of a library, argument": program(lambda t: t.to_dense() + 1, lambda: (torch.randn(3, 4).to_mkldnn(),)),
    "functional": program(
        lambda x: torch._from_functional_tensor(x + 1), lambda: (torch._to_functional_tensor(torch.ones(3)),)
    ),
    "without memory": program(lambda x: x + 1, lambda: (torch._efficientzerotensor(3),)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OTHERS)
def test_tensors_that_no_graph_holds(name: str) -> None:
    check(OTHERS[name])


def both_changed(x: torch.Tensor) -> Any:
    y = x.flatten()
    y.add_(1)
    return y, x


def same_or_not(x: torch.Tensor) -> Any:
    return x.contiguous() is x, x.t().contiguous() is x, x.to(x.dtype) is x, x.view_as(x) is x


#: Operations that return views, or the tensor itself, of two dimensions of which the first has no elements.
OF_EMPTY: dict[str, Callable[..., Any]] = {
    "reshape": lambda x: (x.reshape(-1), x.reshape(5, 0), x.reshape_as(x)),
    "reshape of transposed": lambda x: (x.t().reshape(-1), x.t().flatten().view(0, 7)),
    "flatten": lambda x: (x.flatten(), x.ravel(), x.flatten(1), x.unflatten(1, (3, 1))),
    "view": lambda x: (x.view(3, 0), x.view(torch.int32), x.detach(), x.data),
    "contiguous": lambda x: (x.contiguous(), x.t().contiguous()),
    "the same": same_or_not,
    "expand": lambda x: (x.unsqueeze(0).expand(4, 0, 3), x.broadcast_to(2, 0, 3)),
    "squeeze": lambda x: (x.squeeze(), x.unsqueeze(1), torch.atleast_3d(x)),
    "turned": lambda x: (x.t(), x.mT, x.permute(1, 0), x.movedim(0, 1)),
    "cut": lambda x: (x.narrow(1, 1, 2), x[:, 1:], x[0:0], x[:, 0], x.select(1, 2), x.diagonal()),
    "cut in parts": lambda x: (x.chunk(2, 1), x.split(1, 1), x.unbind(1), x.unfold(1, 2, 1)),
    "strides": lambda x: (x.as_strided((0, 2), (2, 1)), x.as_strided((0,), (1,), 0)),
    "copies": lambda x: (x.clone(), x + 0, x.repeat(1, 2), x[x > 0], (x * 2).flatten()),
    "changed": both_changed,
}
EMPTY: list[Make] = [
    lambda: (torch.ones(0, 3),),
    lambda: (torch.ones(3, 0).t(),),
    lambda: (torch.ones(4, 3)[2:2],),
    lambda: (torch.ones(0, 3, 2)[:, :, 0],),
    lambda: (torch.empty(0, 3).requires_grad_() * 2,),
]


@pytest.mark.parametrize("name", OF_EMPTY)
def test_views_of_what_is_empty(name: str) -> None:
    check(lambda: (OF_EMPTY[name], EMPTY if name != "view" else EMPTY[:1]))


def test_empty_now_and_then() -> None:
    seen = lambda x: (x.flatten(), x.t().reshape(-1), x[1:].flatten(), x[:, 1:].reshape(-1))  # noqa: E731
    check(program(seen, *of_sizes(lambda n: torch.ones(n, 3), (2, 0, 3, 0, 1, 4))))


class Tied(nn.Module):
    """An embedding whose weight also scores, as language models have it."""

    def __init__(self, scored: bool = True, **settings: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3, **settings)
        self.scored = scored

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.table(ids)
        return F.cross_entropy(rows @ self.table.weight.t(), ids) if self.scored else rows + self.table(ids.flip(0))


IDS: list[Make] = [lambda: (torch.arange(2),), lambda: (torch.arange(3),), lambda: (torch.tensor([1, 1]),)]
EMBEDDINGS: list[dict[str, Any]] = [
    {"sparse": True},
    {"sparse": True, "padding_idx": 0},
    {"sparse": True, "max_norm": 0.5, "padding_idx": 0},
    {"max_norm": 0.5, "padding_idx": 1},
]


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("settings", EMBEDDINGS, ids=str)
def test_sparse_gradients(settings: dict[str, Any], scored: bool) -> None:
    check(lambda: (Tied(scored, **settings), IDS))


@pytest.mark.parametrize(
    "dtype",
    [torch.uint16, torch.uint32, torch.uint64, torch.complex32, torch.bits8]
    + [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu],
    ids=str,
)
def test_dtypes_of_which_there_are_no_kernels(dtype: torch.dtype) -> None:
    def seen(x: torch.Tensor) -> Any:
        return x.view(2, -1), x.clone(), x[1:].contiguous(), torch.cat([x, x]), torch.zeros_like(x)

    check(program(seen, lambda: (torch.arange(32, dtype=torch.uint8).view(dtype),)))
    if dtype is not torch.bits8:
        numbers = program(lambda x: (x.to(dtype), x.to(dtype).float() + 1), lambda: (torch.rand(4) * 3,))
        assert check(numbers)["graphs"] == 1


def linear_made(x: torch.Tensor) -> torch.Tensor:
    return nn.Linear(3, 3)(x)


ON_META: Make = lambda: (torch.ones(3, device="meta"),)  # noqa: E731
NOTHING: Make = lambda: ()  # noqa: E731
DEVICES: dict[str, Callable[[], Program]] = {
    "a number": program(lambda: torch.tensor(1.5), NOTHING, NOTHING),
    "numbers": program(lambda: (torch.tensor([[1, 2]]), torch.as_tensor([1.0, 2]), torch.tensor(1j)), NOTHING),
    "computed with": program(lambda: torch.tensor([1.0, 2.0]) + 1, NOTHING),
    "in a list": program(lambda: [torch.tensor(i) for i in range(3)], NOTHING),
    "made": program(lambda: (torch.ones(3), torch.zeros(2, 2), torch.arange(4)), NOTHING, NOTHING),
    "beside another device": program(lambda x: (x + 1, torch.ones(3)), lambda: (torch.ones(3),), ON_META),
    "changed": program(lambda x: x.add_(1), ON_META),
    "viewed": program(lambda x: (x.view(1, 3), x[1:], x), ON_META),
    "scaled": program(lambda x: x * torch.tensor(2.0), ON_META),
    "indices": program(lambda x: x[torch.tensor([0, 1])], ON_META),
    "asked for a number": program(lambda x: x.sum().item(), ON_META),
    "branched on": program(lambda x: x + 1 if x.sum() > 0 else x, ON_META),
    "a module": program(linear_made, ON_META),
    "gradients": program(lambda x: (x * 2).sum(), lambda: (torch.ones(3, device="meta", requires_grad=True),)),
    "named": program(lambda: torch.tensor([1.0, 2.0], device="cpu") + 1, NOTHING),
}


@pytest.mark.parametrize("device", ["meta", "cpu", None])
@pytest.mark.parametrize("name", DEVICES)
def test_default_devices(name: str, device: str | None) -> None:
    torch.set_default_device(device)
    try:
        check(DEVICES[name])
    finally:
        torch.set_default_device(None)


def test_a_default_device_inside() -> None:
    def inside() -> Any:
        with torch.device("meta"):
            return torch.tensor(1.5), torch.ones(2)

    check(program(inside, NOTHING, NOTHING))
