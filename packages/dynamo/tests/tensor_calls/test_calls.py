"""Calls that eager mode refuses although fakes accept them, used or not: they raise where eager raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from driver import check, compiled

from framesmith_aten.recording import OperatorLog


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


def copied_to_its_own_elements(x: Any) -> Any:
    y = x.flatten().long()
    try:
        y.index_copy_(0, y, y + 1)
    except RuntimeError as error:
        return y + 1, str(error)[:60]
    return y


def put_at_its_own_elements(x: Any) -> Any:
    y = x.flatten().long()
    try:
        y[y] = 3
    except RuntimeError as error:
        return y + 2, str(error)[:60]
    return y


def separate_by_index(x: Any) -> Any:
    y = x.flatten().long()
    y[:3].index_add_(0, y[:3].clone(), y[3:6])
    y[:4].scatter_(0, y[8:] - 5, y[4:6])
    y[2:4] = y[4:6]
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


PROGRAMS = [
    overlapping_add, overlapping_copy, copied_to_its_own_elements, put_at_its_own_elements, separate_by_index, expanded,
    allowed, too_large, beyond,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_refused_by_eager(program: Callable[..., Any]) -> None:
    check(program, torch.arange(9.0).view(3, 3))


@pytest.mark.parametrize("program", [allowed, separate_by_index])
def test_plain_item_assignment_does_not_break(program: Callable[..., Any]) -> None:
    assert not check(program, torch.arange(9.0).view(3, 3)).of_kind("break")


def wrong_shapes(x: Any) -> Any:
    try:
        return x @ torch.ones(7, 7)
    except RuntimeError:
        return x


def test_an_operation_that_fakes_refuse_is_not_logged(capfd: pytest.CaptureFixture[str]) -> None:
    check(wrong_shapes, torch.ones(2, 3))
    assert "failed while" not in capfd.readouterr().err


def unused_softmax_of_integers(x: Any, log: list[int]) -> Any:
    log.append(1)
    torch.softmax(x.long(), -1)
    log.append(2)
    return x


def unused_multiplication_of_two_types(x: Any, log: list[int]) -> Any:
    log.append(1)
    x @ torch.eye(3, dtype=torch.float64)
    return x


def unused_difference_of_bools(x: Any, log: list[int]) -> Any:
    (x > 0) - 1
    return x


def number_into_bools(x: Any, log: list[int]) -> Any:
    mask = x > 0
    mask.mul_(2)
    return x


def first_error_first(x: Any, log: list[int]) -> Any:
    F.linear(x.long(), torch.ones(3, 3))
    x.long().add_(0.5)
    return x


def masked_with_too_large_a_number(x: Any, log: list[int]) -> Any:
    return x.half().masked_fill(x > 0, -1e9)


@pytest.mark.parametrize(
    "program",
    [
        unused_softmax_of_integers,
        unused_multiplication_of_two_types,
        unused_difference_of_bools,
        number_into_bools,
        first_error_first,
        masked_with_too_large_a_number,
    ],
)
def test_kernels_that_refuse(program: Callable[..., Any]) -> None:
    def caught(x: Any, log: list[int]) -> Any:
        try:
            return program(x, log)
        except (RuntimeError, NotImplementedError) as error:
            return str(error), x + 1

    check(caught, torch.arange(9.0).view(3, 3), [])
    check(program, torch.arange(9.0).view(3, 3), [])


@pytest.mark.parametrize("second", [slice(1, 3), slice(2, 4)])
def test_an_operator_that_writes_to_memory_another_argument_shows_is_called_by_python(second: slice) -> None:
    def swaps(x: Any) -> Any:
        a, b = x[:2], x[second]
        torch.ops.dynamo_calls.swap(a, b)
        return a + b

    def swap(a: Any, b: Any) -> None:
        former, latter = a.clone(), b.clone()
        a.copy_(latter)
        b.copy_(former)

    with torch.library._scoped_library("dynamo_calls", "FRAGMENT") as made:
        made.define("swap(Tensor(a!) a, Tensor(b!) b) -> ()")
        made.impl("swap", swap, "CPU")
        made.impl("swap", lambda a, b: None, "Meta")
        subject, x, y = compiled(swaps), torch.arange(4.0), torch.arange(4.0)
        assert torch.equal(subject(x), swaps(y)) and torch.equal(x, y)
    kinds = [event.broken.kind.id for event in subject.of_kind("break") if event.broken is not None]
    assert kinds == ([] if second.start == 2 else ["custom-mutation"])


def written_by_strides(x: Any) -> Any:
    whole = torch.as_strided(x, (8,), (1,), 0)
    whole.add_(1)
    return x * 2


def read_by_strides(x: Any) -> Any:
    x.mul_(2)
    return torch.as_strided(x, (2,), (1,), 1) * 3


def written_between(x: Any) -> Any:
    view = x.as_strided((2,), (1,), 1)
    view.copy_(x[:2] * 2)
    return x * 2


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", [read_by_strides, written_between])
def test_views_by_strides_of_parts_that_are_changed(fn: Callable[..., Any], dynamic: bool | None) -> None:
    for part in (lambda memory: memory[1::2], lambda memory: memory[4:], lambda memory: memory):
        seen = []
        for run in (fn, compiled(fn, dynamic=dynamic)):
            memory = torch.arange(8.0)
            seen.append((run(part(memory)).tolist(), memory.tolist()))
        assert seen[0] == seen[1]


@pytest.mark.parametrize("start", [0, 4])
def test_memory_around_an_input_is_written_outside_of_graphs(start: int) -> None:
    seen = []
    for fn in (written_by_strides, subject := compiled(written_by_strides)):
        memory = torch.zeros(8)
        seen.append((fn(memory[start : start + 4]).tolist(), memory.tolist()))
    assert seen[0] == seen[1]
    assert subject.of_kind("break")[0].broken.kind.id == "outside-view"


def squashed_by_strides(x: Any) -> Any:
    x.as_strided((2,), (1,), 0).sigmoid_()
    return x * 2


@pytest.mark.parametrize("turned", [False, True])
def test_what_has_gradients_and_is_not_contiguous_is_written_by_strides_outside_of_graphs(turned: bool) -> None:
    seen = []
    for fn in (squashed_by_strides, subject := compiled(squashed_by_strides)):
        leaf = torch.linspace(-1, 1, 6).reshape(3, 2).requires_grad_()
        result = fn((leaf.t() if turned else leaf) * 1)
        seen.append((result.tolist(), torch.autograd.grad(result.sum(), leaf)[0].tolist()))
    assert seen[0] == seen[1]
    assert [event.broken.kind.id for event in subject.of_kind("break")] == ["outside-view"] * turned


@pytest.mark.parametrize("error", [KeyError("name"), TypeError("of ours")])
def test_what_goes_wrong_in_noting_copies_is_no_error_of_the_operation(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(OperatorLog, "rely_on_copies", fails)
    with pytest.raises(type(error)):
        compiled(lambda x: x.reshape(-1) + 1)(torch.ones(2, 2))
