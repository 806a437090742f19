"""Operations that fail on their data, and those that eager refuses although fakes take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from driver import check

from framesmith_dynamo.tensor_calls.refusals import elements_in, fits, overlaps, overlaps_itself
from framesmith_dynamo.tensor_calls.run_time_errors import is_random, may_fail
from framesmith_guards import new_fake_mode

T = torch.tensor
NAN = torch.full((4, 4), float("nan"))

#: name -> (target, arguments that fakes take and real tensors do not)
FAILING: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "embedding": (F.embedding, (T([5]), torch.zeros(4, 2))),
    "embedding_bag": (F.embedding_bag, (T([5, 1]), torch.zeros(4, 2), T([0, 1]))),
    "getitem": (torch.Tensor.__getitem__, (torch.zeros(4), T([5]))),
    "gather": ("gather", (torch.zeros(4), 0, T([5]))),
    "scatter": ("scatter", (torch.zeros(4), 0, T([5]), 1.0)),
    "index_select": ("index_select", (torch.zeros(4), 0, T([5]))),
    "index_add": ("index_add", (torch.zeros(4), 0, T([5]), torch.ones(1))),
    "index_copy_": ("index_copy_", (torch.zeros(4), 0, T([5]), torch.ones(1))),
    "take": (torch.take, (torch.zeros(4), T([5]))),
    "cross_entropy": (F.cross_entropy, (torch.zeros(2, 4), T([1, 5]))),
    "nll_loss": (F.nll_loss, (torch.zeros(2, 4), T([1, 5]))),
    "multi_margin_loss": (F.multi_margin_loss, (torch.zeros(2, 4), T([1, 5]))),
    "binary_cross_entropy": (F.binary_cross_entropy, (torch.full((2,), 2.0), torch.ones(2))),
    "multinomial": (torch.multinomial, (-torch.ones(4), 1)),
    "bernoulli": (torch.bernoulli, (torch.full((2,), 2.0),)),
    "poisson": (torch.poisson, (-torch.ones(4),)),
    "normal": (torch.normal, (0.0, -torch.ones(4))),
    "inv": (torch.linalg.inv, (torch.zeros(4, 4),)),
    "cholesky": (torch.linalg.cholesky, (torch.zeros(4, 4),)),
    "solve": (torch.linalg.solve, (torch.zeros(4, 4), torch.zeros(4, 4))),
    "eigh": (torch.linalg.eigh, (NAN,)),
    "svd": (torch.linalg.svd, (NAN,)),
    "matrix_power": (torch.linalg.matrix_power, (torch.zeros(4, 4), -1)),
    "floor_divide": (torch.floor_divide, (T([1]), T([0]))),
    "remainder": (torch.remainder, (T([1]), T([0]))),
    "fmod": ("fmod", (T([1]), 0)),
    "one_hot": (F.one_hot, (T([5]), 3)),
    "histc": (torch.histc, (torch.full((3,), float("inf")), 4)),
    "max_unpool1d": (F.max_unpool1d, (torch.zeros(1, 1, 2), T([[[0, 9]]]), 2)),
    "_assert_async": (torch._assert_async, (torch.zeros(1),)),
}


def call(target: Any, args: tuple[Any, ...]) -> Any:
    return getattr(args[0], target)(*args[1:]) if isinstance(target, str) else target(*args)


@pytest.mark.parametrize("name", FAILING)
def test_what_fails_on_data_is_known(name: str) -> None:
    target, args = FAILING[name]
    with pytest.raises((RuntimeError, IndexError)):
        call(target, args)
    mode = new_fake_mode()
    fakes = tuple(mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args)
    with mode:
        call(target, fakes)  # takes them
    assert may_fail(target, [arg for arg in fakes if isinstance(arg, torch.Tensor)])


@pytest.mark.parametrize("target", [torch.add, torch.matmul, "view", "sum", F.gelu, torch.cat, "masked_fill"])
def test_arithmetic_and_views_do_not_fail(target: Any) -> None:
    assert not may_fail(target, [torch.ones(2)])


def test_division_fails_for_integers_only() -> None:
    assert may_fail(torch.floor_divide, [T([1]), T([1])])
    assert not may_fail(torch.floor_divide, [T([1]), T([1.0])])


def test_indexing_fails_with_index_tensors_only() -> None:
    assert may_fail(torch.Tensor.__getitem__, [torch.ones(2), T([0])])
    assert not may_fail(torch.Tensor.__getitem__, [torch.ones(2)])


def test_random_operations_are_known() -> None:
    assert is_random(F.dropout) and is_random("normal_") and is_random(torch.ops.aten.bernoulli.default)
    assert not is_random(torch.add)


# Memory that overlaps


def test_overlap() -> None:
    x = torch.zeros(4, 4)
    assert overlaps(x, x[0], exactly=False)
    assert overlaps(x, x.t(), exactly=False)
    assert not overlaps(x, x.view(4, 4), exactly=False)
    assert overlaps(x, x.view(4, 4), exactly=True)
    assert not overlaps(x[0], x[1], exactly=True)
    assert not overlaps(x, torch.zeros(4), exactly=True)
    assert overlaps_itself(torch.zeros(4).expand(3, 4)) and not overlaps_itself(x.t())


def test_numbers_that_fit() -> None:
    assert fits(127, torch.int8) and not fits(128, torch.int8)
    assert fits(-255, torch.uint8) and not fits(256, torch.uint8)
    assert fits(float("inf"), torch.float16) and not fits(1e6, torch.float16)
    assert not fits(float("nan"), torch.int64)
    assert elements_in("view", (None, 300), {}) == []
    assert elements_in(torch.full, ((300,), 7), {"dtype": torch.int8}) == [7]


def overlapping_add(x: Any) -> Any:
    try:
        x += x[0]
    except RuntimeError:
        return "refused"
    return x


def overlapping_copy(x: Any) -> Any:
    y = x * 2
    try:
        y[1:].copy_(y[:-1])
    except RuntimeError:
        return y + 1
    return y


def expanded(x: Any) -> Any:
    y = (x * 2)[0].expand(3, 3)
    try:
        y.add_(1)
    except RuntimeError:
        return y + 2
    return y


def allowed(x: Any) -> Any:
    x[0] += 1
    x[1:] *= x[:1].clone()
    x[:, 0] = x[:, 1]
    x[1] = x[0] + x[1]
    return x


def too_large(x: Any) -> Any:
    y = x.to(torch.int8)
    try:
        y.fill_(300)
    except RuntimeError:
        y = y + 1
    try:
        return torch.full((2,), 300, dtype=torch.int8)
    except RuntimeError:
        return y


def beyond(x: Any) -> Any:
    try:
        return (x + 1).as_strided((9, 9), (9, 1))
    except RuntimeError:
        return x - 1


@pytest.mark.parametrize("program", [overlapping_add, overlapping_copy, expanded, allowed, too_large, beyond])
def test_refused_by_eager(program: Callable[..., Any]) -> None:
    check(program, torch.arange(9.0).view(3, 3))


def test_plain_item_assignment_does_not_break() -> None:
    assert not check(allowed, torch.arange(9.0).view(3, 3)).of_kind("break")


def wrong_shapes(x: Any) -> Any:
    try:
        return x @ torch.ones(7, 7)
    except RuntimeError:
        return x


def test_an_operation_that_fakes_refuse_is_not_logged(capfd: pytest.CaptureFixture[str]) -> None:
    check(wrong_shapes, torch.ones(2, 3))
    assert "failed while" not in capfd.readouterr().err
