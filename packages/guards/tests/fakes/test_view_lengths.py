"""Views of symbolic sizes have the lengths that were asked for, and strides that hold for the sizes met."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from framesmith_guards import LocalSource, new_fake_mode, python_kernels
from framesmith_guards.fakes.symbols import symbolic_fake

#: Views of tensors with symbolic sizes: the sizes, the view, and its lengths (None: whatever is left).
VIEWS: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor], torch.Tensor], tuple[int | None, ...]]] = {
    "last of all": ((3, 4), lambda x: x.view(-1, 2), (None, 2)),
    "two last": ((6, 4), lambda x: x.view(-1, 2, 3), (None, 2, 3)),
    "one between": ((3, 4), lambda x: x.view(2, -1, 2), (2, None, 2)),
    "a copy": ((3, 4), lambda x: x.t().reshape(-1, 2), (None, 2)),
    "a view of a view": ((3, 4, 5), lambda x: x.view(-1, 2).view(-1, 6).view(-1, 3), (None, 3)),
    "of every other column": ((4, 8), lambda x: x[:, ::2].view(-1, 2, 4), (None, 2, 4)),
    "of a slice": ((6, 5), lambda x: x[:, 1:].unflatten(0, (-1, 3)), (None, 3, None)),
    "copied as a view": ((3, 4), lambda x: torch.view_copy(x, (-1, 2)), (None, 2)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_lengths_are_those_asked_for(name: str) -> None:
    shape, view, lengths = VIEWS[name]
    x = torch.randn(shape)
    mode = new_fake_mode()
    fake = symbolic_fake(mode, x, LocalSource("x"), range(len(shape)))
    with mode, python_kernels(mode):
        result = view(fake)
    for length, asked in zip(result.shape, lengths, strict=True):
        assert asked is None or (type(length) is int and length == asked)
    expected = view(x)
    assert [_now(number) for number in (*result.shape, *result.stride(), result.storage_offset())] == [
        *expected.shape,
        *expected.stride(),
        expected.storage_offset(),
    ]


def test_a_view_of_a_view_has_no_quotient_of_quotients() -> None:
    """`n // (n // 2)` is 2: torch's rule leaves it as it is, and each further view divides by it."""
    mode = new_fake_mode()
    fake = symbolic_fake(mode, torch.randn(3, 2, 5, 5), LocalSource("x"), range(4))
    with mode, python_kernels(mode):
        halves = fake.transpose(-1, -2).reshape(-1, 2)
        again = halves.view(fake.shape).reshape(-1, 2)
    assert str(again.shape[0]).count("//") == 1 and again.shape[1] == 2
    assert again.stride() == (2, 1)


def _now(number: Any) -> int:
    return number.node.hint if isinstance(number, torch.SymInt) else number
