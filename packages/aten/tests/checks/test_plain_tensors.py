"""Tensors that graphs hold; others are refused as operands and as results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from framesmith_aten.checks.plain_tensors import is_quantized_dtype, why_no_fake, why_not_plain, with_bits_of
from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.recording import OperatorLog


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 10, torch.quint8)


#: A tensor's factory, its kind, and whether torch has a fake of it.
KINDS: list[tuple[Callable[[], torch.Tensor], str | None, bool]] = [
    (lambda: torch.eye(2), None, True),
    (lambda: torch.ones(2, dtype=torch.complex64).conj(), None, True),
    (lambda: torch.ones(2, dtype=torch.complex64).conj().imag, None, True),
    (lambda: torch.zeros(2, dtype=torch.float8_e8m0fnu), None, True),
    (lambda: torch.zeros(2, dtype=torch.uint8).view(torch.bits8), None, True),
    (lambda: torch.ones(2, device="meta"), None, True),
    (lambda: torch.eye(2).to_sparse(), "sparse_coo", True),
    (lambda: torch.eye(2).to_sparse_csr(), "sparse_csr", True),
    (lambda: torch.eye(2).to_sparse_bsc((1, 1)), "sparse_bsc", True),
    (quantized, "quantized", False),
    (lambda: quantized()[0], "quantized", False),
    (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested", False),
    (lambda: torch._to_functional_tensor(torch.ones(2)), None, False),
]


@pytest.mark.parametrize(("make", "kind", "has_fake"), KINDS)
def test_kinds(make: Callable[[], torch.Tensor], kind: str | None, has_fake: bool) -> None:
    tensor = make()
    found = why_not_plain(tensor)
    assert found is None if kind is None else found is not None and kind in found
    assert (why_no_fake(tensor) is None) is has_fake


def test_a_view_of_a_nested_tensor_has_no_fake() -> None:
    part = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)]).unbind()[0]
    assert why_not_plain(part) is None
    assert "a view of a nested tensor" in str(why_no_fake(part))


def test_quantized_dtypes_are_those_torch_quantizes_to() -> None:
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    assert {torch.quint8, torch.qint8, torch.qint32} <= {dtype for dtype in dtypes if is_quantized_dtype(dtype)}
    plain = (torch.uint8, torch.uint16, torch.complex32, torch.float8_e4m3fn, torch.bits8, torch.bool)
    assert not any(map(is_quantized_dtype, plain))


def test_bits_of_another_tensor() -> None:
    one = torch.ones(2, dtype=torch.complex64)
    assert with_bits_of(one, one) is one
    assert with_bits_of(one, one.conj()).is_conj()
    assert with_bits_of(one.real, one.conj().imag).is_neg()


def run_on_fakes(call: Callable[..., Any], *args: torch.Tensor) -> Any:
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(one, static_shapes=True) for one in args]
    with mode, OperatorLog():
        return call(*fakes)


REFUSED: dict[str, tuple[Callable[..., Any], Callable[[], torch.Tensor], str]] = {
    "quantized result": (
        lambda x: torch.quantize_per_tensor(x, 0.1, 10, torch.quint8),
        lambda: torch.ones(3),
        "quantized",
    ),
    "quantized by channel": (
        lambda x: torch.quantize_per_channel(x, torch.ones(2), torch.zeros(2), 0, torch.qint8),
        lambda: torch.ones(2, 2),
        "quantized",
    ),
    "quantized of integers": (
        lambda x: torch._make_per_tensor_quantized_tensor(x, 0.1, 3),
        lambda: torch.ones(3, dtype=torch.uint8),
        "quantized",
    ),
    "quantized, made": (lambda x: torch.empty(3, dtype=torch.quint8), lambda: torch.ones(3), "quantized"),
    "sparse result": (lambda x: x.to_sparse(), lambda: torch.eye(3), "sparse_coo"),
    "sparse within": (lambda x: x.to_sparse().to_dense(), lambda: torch.eye(3), "sparse_coo"),
    "sparse, made": (lambda x: torch.zeros(2, 2, layout=torch.sparse_coo), lambda: torch.eye(3), "sparse_coo"),
    "sparse operand": (lambda x: x * 2, lambda: torch.eye(3).to_sparse(), "sparse_coo"),
    "rows": (lambda x: x.to_sparse_csr(), lambda: torch.eye(3), "sparse_csr"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_tensors_are_refused(name: str) -> None:
    call, make, kind = REFUSED[name]
    with pytest.raises(TraceUnsupported, match=kind) as caught:
        run_on_fakes(call, make())
    assert caught.value.id == "tensor-layout"


def sparse_rows(weight: torch.Tensor) -> torch.Tensor:
    return F.embedding(torch.tensor([0, 1]), weight, sparse=True)


def test_sparse_gradients_are_refused_where_they_are_asked_for() -> None:
    weight = torch.ones(3, 2, requires_grad=True)
    with pytest.raises(TraceUnsupported) as caught:
        run_on_fakes(sparse_rows, weight)
    assert caught.value.id == "sparse-gradient"
    assert run_on_fakes(sparse_rows, weight.detach()).shape == (2, 2)
    with torch.no_grad():
        assert run_on_fakes(sparse_rows, weight).shape == (2, 2)
    dense = run_on_fakes(lambda w: F.embedding(torch.tensor([0, 1]), w), weight)
    assert dense.requires_grad
