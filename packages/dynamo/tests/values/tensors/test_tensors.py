"""Tensors and torch functions, compared with eager mode: metadata, methods, indexing, in-place changes, breaks."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from driver import check, compiled

from framesmith_dynamo.values.tensors.tensor_tables import FOLDED_METHODS

X = torch.arange(12.0).reshape(3, 4)
NOTHING = None
SCALE = torch.nn.Parameter(torch.full((4,), 2.0))


def metadata(x: Any) -> Any:
    rows, cols = x.shape
    size = x.size()
    facts = (
        x.ndim,
        x.dim(),
        x.size(-1),
        x.numel(),
        len(x),
        x.dtype,
        x.device.type,
        x.is_floating_point(),
        x.stride(),
        x.is_contiguous(),
    )
    flags = (
        x.requires_grad,
        x.is_leaf,
        x.is_cuda,
        x.layout,
        x.element_size(),
        x.nbytes,
        x.grad_fn,
        hasattr(x, "names"),
        x.type(),
    )
    shape_facts = (size[0], size[-1:], size.numel(), torch.Size([rows]) + (cols,), tuple(size), isinstance(size, tuple))
    return (
        x.sum() * rows * cols,
        facts,
        flags,
        shape_facts,
        torch.is_tensor(x),
        torch.numel(x),
        isinstance(x, torch.nn.Parameter),
    )


def methods(x: Any) -> Any:
    y = x.view(-1).t().reshape(4, 3).permute(1, 0).contiguous().float().to(torch.float64)
    values, indices = x.max(dim=1)
    best = torch.topk(x, 2, dim=-1)
    method = y.add
    return (
        y.T,
        x.mT,
        values,
        indices,
        best.values,
        best.indices,
        method(1),
        x.new_zeros(2),
        x.type_as(y),
        x.split(2),
        *x.chunk(2, dim=1),
    )


def operators(x: Any) -> Any:
    a = 2 * x + 1 - x / 3 + (1 - x) ** 2 + 2**x % 3 - x // 2
    b = (x > 2) & ~(x == 3) | (x <= 0) ^ (5 != x)
    c = -x + +x + abs(x) + x @ SCALE.new_ones(4, 3).T[:3].T @ x
    return (
        a,
        b,
        c,
        x == NOTHING,
        x != "text",
    )


def indexing(x: Any) -> Any:
    index = torch.tensor([0, 2])
    return (
        x[0],
        x[-1, 1:3],
        x[..., None, ::2],
        x[index],
        x[:, index],
        x[1:][0, ..., -1],
        x[None],
        x[[0, 1], [1, 2]],
        x[(slice(None), 1)],
    )


def item_assignment(x: Any) -> Any:
    y = torch.zeros_like(x)
    y[0] = 1.0
    y[1:, ::2] = x[1:, ::2]
    y[..., -1] += 5
    y[torch.tensor([0]), 0] = 9
    return y


def in_place(x: Any) -> Any:
    y = x.clone()
    z = y.add_(1)
    y *= 2
    y.relu_().clamp_(max=20)
    view = y[0]
    view.zero_()
    return y is z, y, z, view


def iteration(x: Any) -> Any:
    first, *rest = x
    total = sum(row.sum() for row in x)
    return first, rest, total, [len(row) for row in x], list(zip(x, range(3)))[2][0], torch.stack([*x]), max(x.shape)


def factories(x: Any) -> Any:
    made = [
        torch.zeros(2, 3),
        torch.arange(3, dtype=x.dtype),
        torch.full(x.shape, 2.0),
        torch.tensor([1.0, 2.0]),
        torch.eye(2),
    ]
    made += [torch.linspace(0, 1, 3), torch.ones_like(x), torch.tensor(3), torch.empty(0), torch.tril(torch.ones(3, 3))]
    return (
        [m + 1 for m in made],
        torch.finfo(x.dtype).min,
        torch.iinfo(torch.int8).max,
        torch.device("cpu"),
        torch.float32.itemsize,
    )


def functional(x: Any) -> Any:
    h = F.layer_norm(F.linear(x, torch.ones(5, 4)), (5,))
    h = F.dropout(F.softmax(h, dim=-1), 0.5, training=False) + F.pad(x, (0, 1))
    e = torch.einsum("ij,kj->ik", x, x)
    return (
        h,
        e,
        torch.cat([x, x], dim=1),
        torch.where(x > 1, x, 0.0),
        F.cross_entropy(x, torch.tensor([0, 1, 2])),
        torch.special.expit(x),
    )


def operator_objects(x: Any) -> Any:
    return torch.ops.aten.add.Tensor(x, 1), torch.ops.aten.mul(x, x), torch.Tensor.sub(x, 1), torch._C._nn.gelu(x)


def grad_modes(x: Any) -> Any:
    with torch.no_grad():
        a = SCALE * x
        inside = torch.is_grad_enabled()
        with torch.enable_grad():
            b = SCALE * x
    c = SCALE * x
    torch.set_grad_enabled(False)
    d = SCALE * x
    torch.set_grad_enabled(True)
    with torch.set_grad_enabled(mode=False):
        e = SCALE * x

    @torch.no_grad()
    def quiet(t: Any) -> Any:
        return t * SCALE

    f = quiet(x)
    flags = [t.requires_grad for t in (a, b, c, d, e, f)]
    return (a + b + c + d + e + f).detach(), inside, torch.is_grad_enabled(), flags


def grad_mode_after_an_error(x: Any) -> Any:
    try:
        with torch.no_grad():
            raise ValueError
    except ValueError:
        after = torch.is_grad_enabled()
    return (SCALE * x).requires_grad, after


def autocast(x: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = x @ x.T
        with torch.autocast("cpu", enabled=False):
            plain = x @ x.T
    return inside, plain, (x @ x.T).dtype, inside.dtype


def random_numbers(x: Any) -> Any:
    return (
        torch.rand(3),
        torch.randn_like(x),
        F.dropout(x, 0.5),
        torch.randint(0, 5, (2,)),
        torch.randperm(4),
        torch.bernoulli(x / 20),
    )


PROGRAMS = [
    metadata,
    methods,
    operators,
    indexing,
    item_assignment,
    in_place,
    iteration,
    factories,
    functional,
    operator_objects,
    grad_modes,
    grad_mode_after_an_error,
    autocast,
    random_numbers,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
def test_program(program: Any) -> None:
    subject = check(program, X)
    assert not subject.of_kind("break"), [str(event.broken) for event in subject.of_kind("break")]


BREAKING = {
    "item": lambda x: x + x.sum().item(),
    "tolist": lambda x: x * len(x.tolist()),
    "truth": lambda x: x + 1 if x.sum() > 3 else x - 1,
    "int": lambda x: x * int(x[0, 1]),
    "float": lambda x: x * float(x.max()),
    "numpy": lambda x: x + float(np.asarray(x.numpy()).sum()),
    "nonzero": lambda x: x.nonzero() + 1,
    "mask": lambda x: x[x > 3] * 2,
    "unique": lambda x: torch.unique(x) + 1,
    "seed": lambda x: (torch.manual_seed(3), x + torch.rand(3, 4))[1],
    "contains": lambda x: (x * 2, 3.0 in x),
    "recorded backward": lambda x: (SCALE * x).sum().backward(create_graph=True) or x + 1,
    "init": lambda x: torch.nn.init.zeros_(x.clone()) + 1,
    "linear": lambda x: seeded_linear()(x),
    "text": lambda x: (x + 1, f"{x.sum()}"),
    "equal": lambda x: (x + 1, torch.equal(x, x)),
    "grad of no leaf": lambda x: (x * 2, (SCALE * x).grad_fn is None),
    "data_ptr": lambda x: (x + 1, x.data_ptr() != 0),
    "inference": lambda x: inference(x) * 1,
}


def seeded_linear() -> Any:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 2)


def inference(x: Any) -> Any:
    with torch.inference_mode():
        return x + 1


@pytest.mark.parametrize("name", BREAKING)
def test_break_gives_the_eager_answer(name: str) -> None:
    SCALE.grad = None
    check(BREAKING[name], X)  # where symbols are allowed, some do not break
    SCALE.grad = None
    subject = check(BREAKING[name], X, dynamic=False)
    assert subject.of_kind("break") or subject.of_kind("skip") or subject.of_kind("run_once") or not subject.graphs


#: Kind of break -> calls whose operators report it, by method and by function.
REPORTED_BY_OPERATORS = {
    "tensor-data-to-python": [
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: x.equal(x),
        lambda x: torch.equal(x, x),
        lambda x: x.allclose(x),
        lambda x: torch.allclose(x, x),
        lambda x: x[:1, :1].is_nonzero(),
        lambda x: torch.is_nonzero(x[:1, :1]),
    ],
    "dynamic-output-shape": [
        lambda x: x.nonzero(),
        lambda x: torch.nonzero(x),
        lambda x: torch.where(x > 3),
        lambda x: x.argwhere(),
        lambda x: x[x > 3],
        lambda x: x.masked_select(x > 3),
        lambda x: torch.masked_select(x, x > 3),
        lambda x: x.unique(),
        lambda x: torch.unique_consecutive(x),
        lambda x: torch.bincount(x.long().flatten()),
    ],
    "tensor-storage": [lambda x: x.clone().resize_as_(x), lambda x: torch.resize_as_(x.clone(), x)],
    "tensor-autograd-state": [lambda x: x.detach_(), lambda x: torch.detach_(x)],
}


@pytest.mark.parametrize("kind", REPORTED_BY_OPERATORS)
def test_methods_and_functions_break_for_the_same_reason(kind: str) -> None:
    for call in REPORTED_BY_OPERATORS[kind]:
        subject = check(lambda x, call=call: (x + 1, call(x)), X, dynamic=False)
        assert kind in {event.broken.kind.id for event in subject.of_kind("break") if event.broken is not None}


PINNED: list[Callable[[torch.Tensor], object]] = [
    lambda x: torch.zeros(3, pin_memory=True),
    lambda x: torch.empty(3, 2, pin_memory=True).fill_(1.0),
    lambda x: torch.tensor([1.0, 2.0], pin_memory=True),
    lambda x: torch.arange(3, pin_memory=True),
    lambda x: torch.rand(3, pin_memory=True),
    lambda x: x.new_zeros(3, pin_memory=True),
    lambda x: torch.zeros_like(x, pin_memory=True),
    lambda x: torch.hann_window(4, pin_memory=True),
    lambda x: torch.ops.aten.full.default([2], 1.5, pin_memory=True),
    lambda x: torch.ops.aten.is_pinned.default(x),
]


@pytest.mark.parametrize("at", range(len(PINNED)))
def test_what_concerns_pinned_memory_breaks(at: int) -> None:
    """The result where there is such memory, and the error where there is none, are eager mode's."""

    def step(x: torch.Tensor) -> object:
        y = x + 1
        try:
            return y, PINNED[at](y)
        except RuntimeError as error:
            return y, type(error)

    subject = check(step, X)
    assert "pinned-memory" in {event.broken.kind.id for event in subject.of_kind("break") if event.broken is not None}


def test_memory_that_is_not_to_be_pinned_is_made_in_the_graph() -> None:
    subject = check(lambda x: x + torch.zeros(4, pin_memory=False) + x.new_ones(4, pin_memory=False), X)
    assert not subject.of_kind("break")


RESHAPED: dict[str, Any] = {
    "transposed": lambda x: x.t_(),
    "squeezed": lambda x: x.unsqueeze_(0).mul_(2).squeeze_(),
    "swapped": lambda x: torch.swapaxes(x, 0, 1).swapaxes_(0, 1).mul_(x.swapaxes_(0, 1).sum()),
    "strided": lambda x: torch.as_strided_(x, (2, 2), (1, 1)),
}


@pytest.mark.parametrize("name", RESHAPED)
def test_an_input_reshaped_in_place_breaks(name: str) -> None:
    def step(x: torch.Tensor) -> object:
        x.mul_(3)
        RESHAPED[name](x)
        return x + 1, x.shape, x.stride()

    subject = check(step, X)
    assert "input-reshaped" in {event.broken.kind.id for event in subject.of_kind("break") if event.broken is not None}


def test_a_view_of_an_input_is_reshaped_in_the_graph() -> None:
    def step(x: torch.Tensor) -> object:
        view = x[:1].unsqueeze_(0)
        made = (x * 2).t_()
        return view.add_(1), made, x

    assert not check(step, X).of_kind("break")


METADATA = {
    "is_same_size": lambda x: (x.is_same_size(x), torch.is_same_size(x, x[0])),
    "numel": lambda x: (x.numel(), torch.numel(x), torch.numel(input=x)),
    "floating": lambda x: (x.is_floating_point(), torch.is_floating_point(x), torch.is_complex(input=x)),
    "put_": lambda x: x.clone().put_(torch.tensor([0, 5]), torch.tensor([7.0, 8.0])),
    "nonzero_static": lambda x: torch.nonzero_static(x, size=20) + x.nonzero_static(size=20),
}


@pytest.mark.parametrize("name", METADATA)
def test_what_needs_no_data_breaks_neither_as_method_nor_as_function(name: str) -> None:
    subject = check(lambda x: (x + 1, METADATA[name](x)), X)
    assert not subject.of_kind("break")


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, k: int) -> Any:
        ctx.save_for_backward(x)
        ctx.k = k
        return x * x * k

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * x * 2 * ctx.k, None


def test_autograd_function_is_inlined_without_gradients_and_breaks_with_them() -> None:
    subject = check(lambda x: Squared.apply(x, 3) + 1, X)
    assert len(subject.graphs) == 1
    assert not subject.of_kind("break")
    x = X.clone().requires_grad_()
    result = compiled(lambda t: Squared.apply(t, 3) + 1)(x)
    result.sum().backward()
    assert torch.equal(x.grad, X * 6)


def test_input_changed_in_place_is_changed_once() -> None:
    def program(x: Any) -> Any:
        x.add_(1)
        x[0] = 7
        return x.sum(), x

    x = X.clone()
    subject = compiled(program)
    total, same = subject(x)
    assert same is x
    expected = X + 1
    expected[0] = 7
    assert torch.equal(x, expected)
    assert total == expected.sum()
    subject(x)
    assert torch.equal(x[1:], X[1:] + 2)


def test_new_shape_dtype_or_grad_flag_recompiles() -> None:
    subject = compiled(lambda x: x * 2 if x.dtype is torch.float32 else x + len(x))
    for x in (X, X[:2], X.double(), X.clone().requires_grad_(), X.t()):
        assert torch.equal(subject(x), x * 2 if x.dtype is torch.float32 else x + len(x))
    assert len(subject.graphs) == 5


def test_attribute_on_a_tensor() -> None:
    x = X.clone()
    subject = compiled(lambda t: t + getattr(t, "offset", 1))
    assert torch.equal(subject(x), X + 1)
    x.offset = 5
    assert torch.equal(subject(x), X + 5)


def test_two_names_for_one_tensor() -> None:
    def program(a: Any, b: Any) -> Any:
        a.add_(1)
        return b * 2, a is b

    for one, other in ((X.clone(), X.clone()), (X.clone(),) * 2):
        expected = program(one.clone(), other.clone()) if one is not other else program(*(one.clone(),) * 2)
        found = compiled(program)(one, other)
        assert torch.equal(found[0], expected[0])
        assert found[1] == expected[1]


def test_folded_methods_agree_with_torch() -> None:
    for name, function in FOLDED_METHODS.items():
        if name not in ("is_same_size", "has_names"):
            assert function(X) == getattr(X, name)() or math.isnan(function(X))


TWICE: dict[str, Any] = {
    "expanded": lambda x: x[:1].expand(4, -1)[1].add_(1),
    "unfolded": lambda x: x.unfold(1, 2, 1)[0, 0].mul_(2),
    "strided": lambda x: x.as_strided((2, 2), (1, 1))[0].add_(5),
    "by way of data": lambda x: x[:1].expand(4, -1)[1].data.add_(1),
}


@pytest.mark.parametrize("name", TWICE)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_a_write_to_memory_that_a_view_shows_twice_breaks(name: str, mode: Any) -> None:
    def step(x: torch.Tensor) -> object:
        y = x * 1
        TWICE[name](y)
        return y + 1

    with mode():
        subject = check(step, X)
    ids = {event.broken.kind.id for event in subject.of_kind("break") if event.broken is not None}
    assert "overlapping-mutation" in ids


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_a_write_by_way_of_data_to_an_expanded_input_breaks(mode: Any) -> None:
    def step(x: torch.Tensor) -> object:
        part = x.narrow(0, 0, 1)
        part.data.add_(2)
        return part

    with mode():
        subject = check(step, torch.ones(1).expand(4))
    ids = {event.broken.kind.id for event in subject.of_kind("break") if event.broken is not None}
    assert "overlapping-mutation" in ids


def test_normal_numbers_in_memory_with_gaps_break_where_their_order_differs() -> None:
    def many(x: torch.Tensor) -> object:
        return torch.zeros(64)[::2].normal_() + x.sum()

    def few(x: torch.Tensor) -> object:
        return torch.zeros(8)[::2].normal_() + x.sum()

    for step, broken in ((many, ["rng-order"]), (few, [])):
        torch.manual_seed(0)
        wanted = step(X)
        torch.manual_seed(0)
        subject = compiled(step)
        assert torch.equal(subject(X), wanted)
        found = [event.broken.kind.id for event in subject.of_kind("break") if event.broken is not None]
        assert found == broken


def to_classes(x: Any) -> Any:
    classes = (torch.FloatTensor, torch.DoubleTensor, torch.IntTensor, torch.HalfTensor, torch.Tensor)
    return [x.type(cls) + 1 for cls in classes], x.type(dtype=torch.LongTensor), x.type(torch.DoubleTensor, True)


def python_dtypes(x: Any) -> Any:
    made = (
        torch.zeros(2, dtype=float),
        torch.ones(2, dtype=bool),
        torch.ones(2, dtype=int),
        torch.ones(2, dtype=complex),
    )
    return *(x.sum() + one for one in made), x.to(int), x.sum(dtype=float)


class Bits(enum.IntFlag):
    ONE = 1
    TWO = 2


class Reduction(enum.StrEnum):
    SUM = "sum"


def members(x: Any) -> Any:
    return x + (Bits.ONE | Bits.TWO), x * Bits(0), x.sum(Bits.ONE), F.mse_loss(x, x + 1, reduction=Reduction.SUM)


@pytest.mark.parametrize("fn", [to_classes, python_dtypes, members])
def test_classes_and_enum_members_as_arguments_of_operations(fn: Any) -> None:
    assert not check(fn, X, calls=2).of_kind("break")


def test_numbers_and_functions_without_a_text_break_the_graph() -> None:
    def numbers(x: Any) -> Any:
        return x * complex(math.inf, 1.0)

    def functions(x: Any) -> Any:
        return (x + 1).apply_(abs)

    for fn, kind in ((numbers, "argument-without-text"), (functions, None)):
        broken = [event.broken for event in check(fn, X).of_kind("break")]
        assert broken and all(one is not None and kind in (None, one.kind.id) for one in broken)


@pytest.mark.parametrize("mode", [1, None, "on", torch.tensor(True)], ids=str)
def test_a_grad_mode_that_is_no_bool_is_refused(mode: Any) -> None:
    def f(x: Any) -> Any:
        try:
            torch.set_grad_enabled(mode)
        except TypeError as error:
            return x + 1, str(error), torch.is_grad_enabled()
        return x + 2, "", torch.is_grad_enabled()

    check(f, torch.ones(2))
