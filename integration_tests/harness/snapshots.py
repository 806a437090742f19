"""Comparable copies of what a program holds and returns: contents, metadata, shared memory and which objects are one.

Two worlds are built and run separately, so nothing in a copy is compared by address: an object met again is copied
as the path where it was met first, a tensor's shared memory as the paths of the tensors it shares it with.
"""

from __future__ import annotations

import array
import collections
import enum
import functools
import inspect
import types
import weakref
from collections.abc import Callable, Mapping, MappingView
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

PLAIN = (int, float, complex, str, bytes, bool, type(None), type(...), type(NotImplemented), range, slice)
PLAIN_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)


@dataclass(frozen=True)
class Value:
    """An immutable object. `argument`: the arguments that are this very object, not only equal to it."""

    kind: str
    value: Any
    argument: frozenset[str]


@dataclass(frozen=True)
class Met:
    """A mutable object that was met before, at `place`."""

    place: str


@dataclass(frozen=True)
class Array:
    """Numbers: compared within a case's tolerance."""

    values: torch.Tensor


Take = Callable[[Any, str], Any]
"""Copies a part of an object; the text says how the part is reached from the object."""


class Snapshots:
    """Copies what one call left, in the order given: first the arguments, last what the call returned."""

    def __init__(self) -> None:
        self.positions: dict[int, str] = {}
        self.arguments: dict[int, set[str]] = {}
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.kept: list[Any] = []

    def take(self, obj: Any, place: str, *, of_argument: bool = False) -> Any:
        """A comparable copy of `obj`, which stands at `place`."""

        def part(inner: Any, way: str) -> Any:
            return self.take(inner, place + way, of_argument=of_argument and way[:4] != "<key")

        kind = name_of(type(obj))
        if isinstance(obj, PLAIN_TORCH) or (isinstance(obj, PLAIN) and not isinstance(obj, enum.Enum)):
            return Value(kind, obj, self.held(obj, place, of_argument))
        if isinstance(obj, (tuple, frozenset)):
            held = self.held(obj, place, of_argument)
            return {"is": Value(kind, None, held), "items": items_of(obj, part)}
        if id(obj) in self.positions:
            return Met(self.positions[id(obj)])
        self.positions[id(obj)] = place
        self.kept.append(obj)
        if isinstance(obj, torch.Tensor):
            return {"kind": kind, **self.tensor(obj, place), **attributes_of(obj, part)}
        contents = next((of for kinds, of in CONTENTS if isinstance(obj, kinds)), attributes_of)
        return {"kind": kind, **contents(obj, part)}

    def held(self, obj: Any, place: str, of_argument: bool) -> frozenset[str]:
        """Return the position of this very immutable object in the arguments."""
        if of_argument:
            self.arguments.setdefault(id(obj), set()).add(place)
            self.kept.append(obj)
        return frozenset(self.arguments.get(id(obj), ()))

    def tensor(self, t: torch.Tensor, place: str) -> dict[str, Any]:
        """Metadata, shared memory and contents."""
        described = {
            "dtype": t.dtype,
            "device": str(t.device),
            "shape": tuple(t.shape),
            "layout": t.layout,
            "requires_grad": t.requires_grad,
            "is_leaf": t.is_leaf,
            "is_inference": t.is_inference(),
        }
        if t.layout != torch.strided:
            return {**described, "values": Array(t.detach().to_dense())}
        shared = [(other, byte_distance(t, known)) for other, known in self.tensors if share_memory(t, known)]
        self.tensors.append((place, t))
        return {**described, "stride": t.stride(), "shares": shared, "values": Array(t.detach().clone())}


def items_of(obj: Any, take: Take) -> list[Any]:
    """The copies of a collection's items; a set's in an order of their own."""
    copies = [take(item, f"[{n}]") for n, item in enumerate(obj)]
    return sorted(copies, key=repr) if isinstance(obj, (set, frozenset)) else copies


def attributes_of(obj: Any, take: Take) -> dict[str, Any]:
    """Return the state of an object beside the values that its type is compared by."""
    held = attributes(obj)
    return {"attributes": [(name, take(value, f".{name}")) for name, value in held]} if held else {}


def sequence(obj: Any, take: Take) -> dict[str, Any]:
    return {"items": items_of(obj, take), **attributes_of(obj, take)}


def mapping(obj: Any, take: Take) -> dict[str, Any]:
    """Keys, in order, and values; a subclass of dict is not asked by its own methods."""
    kind: Any = next((kind for kind in (collections.OrderedDict, dict) if isinstance(obj, kind)), type(obj))
    pairs = list(kind.items(obj))
    keys = [take(key, f"<key {n}>") for n, (key, _) in enumerate(pairs)]
    return {"keys": keys, "values": [take(value, f"[{key!r}]") for key, value in pairs], **attributes_of(obj, take)}


def deque(obj: collections.deque[Any], take: Take) -> dict[str, Any]:
    return {"maxlen": obj.maxlen, **sequence(obj, take)}


def defaultdict(obj: collections.defaultdict[Any, Any], take: Take) -> dict[str, Any]:
    return {"default_factory": take(obj.default_factory, ".default_factory"), **mapping(obj, take)}


def buffer(obj: Any, take: Take) -> dict[str, Any]:
    return {"bytes": bytes(obj), **attributes_of(obj, take)}


def view(obj: Any, take: Take) -> dict[str, Any]:
    """Its items; the mapping it is a view of is copied where the program has it."""
    return {"items": [take(item, f"[{n}]") for n, item in enumerate(obj)]}


def partial(obj: functools.partial[Any], take: Take) -> dict[str, Any]:
    parts = {name: take(getattr(obj, name), f".{name}") for name in ("func", "args", "keywords")}
    return {**parts, **attributes_of(obj, take)}


def method(obj: types.MethodType, take: Take) -> dict[str, Any]:
    return {name: take(getattr(obj, name), f".{name}") for name in ("__func__", "__self__")}


def exception(obj: BaseException, take: Take) -> dict[str, Any]:
    parts = {name: take(getattr(obj, name), f".{name}") for name in ("args", "__cause__", "__context__")}
    return {**parts, **attributes_of(obj, take)}


#: The first row that fits says what an object is compared by.
CONTENTS: tuple[tuple[Any, Callable[[Any, Take], dict[str, Any]]], ...] = (
    (np.ndarray, lambda obj, take: {"array": (obj.dtype.str, obj.shape, obj.strides, obj.tolist())}),
    (torch.Generator, lambda obj, take: {"state": Array(obj.get_state())}),
    ((type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType), lambda obj, take: {"name": name_of(obj)}),
    (enum.Enum, lambda obj, take: {"name": obj.name, **attributes_of(obj, take)}),
    (functools.partial, partial),
    (types.MethodType, method),
    (BaseException, exception),
    (collections.defaultdict, defaultdict),
    (Mapping, mapping),
    (collections.deque, deque),
    ((list, set), sequence),
    ((bytearray, memoryview), buffer),
    (array.array, lambda obj, take: {"array": (obj.typecode, obj.tolist()), **attributes_of(obj, take)}),
    (MappingView, view),
    (weakref.ref, lambda obj, take: {"refers to": take(obj(), "()")}),
)


def name_of(obj: Any) -> str:
    """Return the name of a class, function or module: each world has classes of its own."""
    return f"{getattr(obj, '__module__', '')}.{getattr(obj, '__qualname__', obj.__name__)}"


def attributes(obj: Any) -> list[tuple[str, Any]]:
    """Return the items of an object's `__dict__`, in order, and of its slots."""
    if isinstance(obj, torch.Tensor):
        return [(name, value) for name, value in vars(obj).items() if not callable(value)]
    if isinstance(obj, torch.nn.Module):
        return module_attributes(obj)
    kinds = [vars(kind) for kind in type(obj).__mro__ if "__slots__" in vars(kind)]
    slots = {name: slot for fields in kinds for name, slot in fields.items() if inspect.ismemberdescriptor(slot)}
    held = [(name, slot.__get__(obj)) for name, slot in slots.items() if slot_is_set(slot, obj)]
    fields = getattr(obj, "__dict__", None)
    return held + (list(fields.items()) if isinstance(fields, dict) else [])


def slot_is_set(slot: Any, obj: Any) -> bool:
    """Whether a slot holds anything, asked without the class's own attribute hooks."""
    try:
        slot.__get__(obj)
    except AttributeError:
        return False
    return True


def module_attributes(module: torch.nn.Module) -> list[tuple[str, Any]]:
    """A module's parameters, buffers, children and plain attributes."""
    fields = vars(module)
    groups = [(group, fields[group]) for group in ("_parameters", "_buffers", "_modules")]
    hidden = ("_non_persistent_buffers_set",)
    plain = [(name, value) for name, value in fields.items() if name[:1] != "_" or name in hidden]
    return [(f"{group}.{name}", value) for group, table in groups for name, value in table.items()] + plain


def memory(t: torch.Tensor) -> tuple[int, int]:
    """The addresses a tensor's storage spans."""
    start = t.untyped_storage().data_ptr()
    return start, start + t.untyped_storage().nbytes()


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the storages of two tensors have memory in common; two storages can stand over one buffer."""
    (a_start, a_end), (b_start, b_end) = memory(a), memory(b)
    return a_start < b_end and b_start < a_end and a.numel() > 0 and b.numel() > 0


def byte_distance(a: torch.Tensor, b: torch.Tensor) -> int:
    """Return the offset of the first element of `a` from that of `b`, in bytes."""
    return a.data_ptr() - b.data_ptr()
