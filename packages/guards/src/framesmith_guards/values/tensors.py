"""Specs of tensors: all metadata that a graph was specialised on, without keeping the tensor alive."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

import torch

from framesmith_guards.errors import GuardError
from framesmith_guards.torch_adapter import unstable
from framesmith_guards.values.refs import Ref, qualified_name

PLAIN_TYPES: Final[tuple[type[torch.Tensor], ...]] = (torch.Tensor, torch.nn.Parameter)
"""The classes of tensors that no subclass's code acts on; `torch.nn.Buffer` makes tensors of the first."""

Dim = int | None
"""A size or stride in elements; None where any value is allowed (a dynamic dimension)."""


def dispatch_keys(tensor: torch.Tensor) -> int:
    """Return the tensor's own dispatch keys as bits (conjugate, negative, functorch, inference, ... included)."""
    return int(unstable.dispatch_keys(tensor).raw_repr())


@dataclass(frozen=True)
class TensorSpec:
    """A tensor's exact metadata. Sizes and strides are None where the tensor has none or they may vary."""

    pytype: Ref
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    requires_grad: bool
    sizes: tuple[Dim, ...] | None
    strides: tuple[Dim, ...] | None
    dispatch_keys: int

    @classmethod
    def of(cls, tensor: torch.Tensor, *, like: torch.Tensor | None = None) -> TensorSpec:
        """Return the spec of `tensor`.

        With `like`, a fake tensor standing for it, sizes and strides that are symbolic there are open (SHAPE guards
        then relate them). Raises GuardError for something that is not a tensor.
        """
        if not isinstance(tensor, torch.Tensor):
            raise GuardError(f"TENSOR_MATCH needs a torch.Tensor, not a {qualified_name(type(tensor))}")
        with unstable.DisableTorchFunction():
            return cls._read(tensor, _symbolic(like, torch.Tensor.size), _symbolic(like, torch.Tensor.stride))

    @classmethod
    def _read(cls, tensor: torch.Tensor, dims: Collection[int], strides: Collection[int]) -> TensorSpec:
        strided = tensor.layout is torch.strided and not tensor.is_nested
        return cls(
            pytype=Ref(type(tensor)),
            dtype=tensor.dtype,
            device=tensor.device,
            layout=tensor.layout,
            requires_grad=tensor.requires_grad,
            sizes=None if tensor.is_nested else _fixed(tensor.size(), dims),
            strides=_fixed(tensor.stride(), strides) if strided else None,
            dispatch_keys=dispatch_keys(tensor),
        )

    def __str__(self) -> str:
        shape = "?" if self.sizes is None else f"[{', '.join('?' if s is None else str(s) for s in self.sizes)}]"
        return f"{self.pytype.text} {self.dtype} {shape} on {self.device}"


def _symbolic(fake: torch.Tensor | None, read: Callable[[torch.Tensor], Any]) -> list[int]:
    if fake is None or fake.layout is not torch.strided or fake.is_nested:
        return []
    return [dim for dim, value in enumerate(read(fake)) if type(value) is not int]


def _fixed(values: Any, open_dims: Collection[int]) -> tuple[Dim, ...]:
    # A symbolic value is open: its relations are SHAPE guards.
    return tuple(None if index in open_dims or type(value) is not int else value for index, value in enumerate(values))


def matches(values: Any, expected: tuple[Dim, ...]) -> bool:
    """Whether sizes or strides agree where `expected` is not None."""
    return len(values) == len(expected) and all(e is None or v == e for v, e in zip(values, expected, strict=True))


@dataclass(frozen=True)
class TensorField:
    """One field that a TENSOR_MATCH compares: how to read it of a tensor and of a spec, and how to print the check."""

    name: str
    read: Callable[[torch.Tensor], object]
    text: str


FIELDS: Final = (
    TensorField("dtype", lambda t: t.dtype, "{x}.dtype is {e}"),
    TensorField("sizes", lambda t: tuple(t.size()), "{x}.size() == {e}"),
    TensorField("requires_grad", lambda t: t.requires_grad, "{x}.requires_grad is {e}"),
    TensorField("strides", lambda t: t.stride(), "{x}.stride() == {e}"),
    TensorField("device", lambda t: t.device, "{x}.device == {e}"),
    TensorField("layout", lambda t: t.layout, "{x}.layout is {e}"),
    TensorField("dispatch_keys", dispatch_keys, "{keys}({x}) == {e}"),
)
"""The fields compared after the type, likely misses and cheap reads first."""

_SHAPED: Final = frozenset({"sizes", "strides"})


def first_difference(tensor: object, spec: TensorSpec) -> tuple[str, object, object] | None:
    """Return (field, expected, found) of the first field in which `tensor` misses `spec`; None if it matches."""
    if not spec.pytype.refers_to(type(tensor)):
        return ("type", spec.pytype.text, qualified_name(type(tensor)))
    assert isinstance(tensor, torch.Tensor)
    with unstable.DisableTorchFunction():
        for field in FIELDS:
            expected = getattr(spec, field.name)
            if expected is None:
                continue
            found = field.read(tensor)
            same = matches(found, expected) if field.name in _SHAPED else found == expected
            if not same:
                return (field.name, expected, found)
    return None


def check_text(x: str, spec: TensorSpec, bind: Callable[[object, str], str]) -> str:
    """Return Python text of the comparison of every field but the type, for a tensor in variable `x`."""
    parts: list[str] = []
    for field in FIELDS:
        expected = getattr(spec, field.name)
        if expected is None:
            continue
        if field.name in _SHAPED and None in expected:
            parts += _open_text(x, "size" if field.name == "sizes" else "stride", expected)
            continue
        keys = bind(dispatch_keys, "dispatch_keys") if "{keys}" in field.text else ""
        parts.append(field.text.format(x=x, e=bind(expected, field.name), keys=keys))
    return " and ".join(parts)


def _open_text(x: str, reader: str, expected: tuple[Dim, ...]) -> list[str]:
    fixed = [f"{x}.{reader}({dim}) == {value}" for dim, value in enumerate(expected) if value is not None]
    return [f"{x}.dim() == {len(expected)}", *fixed]
