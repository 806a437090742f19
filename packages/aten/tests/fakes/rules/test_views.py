"""Views in symbolic sizes: the operator's lengths, strides and refusals, for the sizes met."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from framesmith_aten.fakes import new_fake_mode, python_kernels
from framesmith_aten.fakes.symbols import symbolic_fake
from framesmith_guards import LocalSource

#: Views of tensors with symbolic sizes: the sizes, the view, and its lengths (None: whatever is left).
VIEWS: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor], torch.Tensor], tuple[int | None, ...]]] = {
    "last of all": ((3, 4), lambda x: x.view(-1, 2), (None, 2)),
    "two last": ((6, 4), lambda x: x.view(-1, 2, 3), (None, 2, 3)),
    "one between": ((3, 4), lambda x: x.view(2, -1, 2), (2, None, 2)),
    "a copy": ((3, 4), lambda x: x.t().reshape(-1, 2), (None, 2)),
    "a view of a view": ((3, 4, 5), lambda x: x.view(-1, 2).view(-1, 6).view(-1, 3), (None, 3)),
    "of every other column": ((4, 8), lambda x: x[:, ::2].view(-1, 2, 4), (None, 2, 4)),
    "of a slice": ((6, 5), lambda x: x[:, 1:].unflatten(0, (-1, 3)), (None, 3, None)),
    "across a single one": ((3, 4), lambda x: x[:, None].view(-1, 2), (None, 2)),
    "ones in between": ((3, 4), lambda x: x[:, 1:].view(-1, 1, 3, 1), (None, 1, None, 1)),
    "the same again": ((3, 4), lambda x: x.t().view(4, 3), (None, None)),
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


@pytest.mark.parametrize("turned", [False, True])
def test_a_view_is_conjugate_or_negative_as_the_tensor_is(turned: bool) -> None:
    mode = new_fake_mode()
    fake = symbolic_fake(mode, torch.randn(4, 6, dtype=torch.complex64), LocalSource("x"), range(2))
    with mode, python_kernels(mode):
        x = fake.t() if turned else fake
        assert x.conj().view(*x.shape[:-1], -1, 2).is_conj()
        assert x.conj().imag.view(*x.shape[:-1], -1, 2).is_neg()


@pytest.mark.parametrize(
    "refused",
    [
        lambda x: x[:, :2].view(-1),
        lambda x: x[:, :2].unsqueeze(1).view(-1),
        lambda x: x.t().unsqueeze(1).view(x.shape[0] * x.shape[1]),
        lambda x: x.t().unsqueeze(1).unsqueeze(1).view(-1),
        lambda x: x.t().unflatten(-1, (-1, 4)).view(-1),
        lambda x: x.view(-1, 5),
        lambda x: x.view(x.shape[0] + 1, -1),
    ],
)
def test_what_memory_does_not_show_is_refused_in_eagers_words(refused: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Torch's rule takes two dimensions for one where one of a single element is between them."""
    with pytest.raises(RuntimeError) as wanted:
        refused(torch.randn(4, 6))
    mode = new_fake_mode()
    fake = symbolic_fake(mode, torch.randn(4, 6), LocalSource("x"), range(2))
    with mode, python_kernels(mode), pytest.raises(RuntimeError) as found:
        refused(fake)
    assert str(found.value).split()[0] == str(wanted.value).split()[0]


def _now(number: Any) -> int:
    return number.node.hint if isinstance(number, torch.SymInt) else number
