"""Comparable copies of what a program holds and returns: contents, metadata, shared memory and which objects are one.

Two worlds are built and run apart, so nothing in a copy is compared by address: an object met a second time is copied
as the place where it was met first, a tensor's shared memory as the places of the tensors it shares it with.
"""

from __future__ import annotations

import collections
import enum
import functools
import inspect
import types
import weakref
from collections.abc import Iterator, Mapping
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


class Snapshots:
    """Copies what one call left, in the order given: first the arguments, last what the call returned."""

    def __init__(self) -> None:
        self.places: dict[int, str] = {}
        self.arguments: dict[int, set[str]] = {}
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.kept: list[Any] = []

    def take(self, obj: Any, place: str, *, of_argument: bool = False) -> Any:
        """A comparable copy of `obj`, which stands at `place`."""
        if isinstance(obj, PLAIN) and not isinstance(obj, enum.Enum):
            return Value(name_of(type(obj)), obj, self.held(obj, place, of_argument))
        if isinstance(obj, PLAIN_TORCH):
            return Value(name_of(type(obj)), obj, frozenset())
        if isinstance(obj, (tuple, frozenset)):
            arguments = self.held(obj, place, of_argument)
            return (name_of(type(obj)), Value("identity", None, arguments), self.items(obj, place, of_argument))
        if id(obj) in self.places:
            return Met(self.places[id(obj)])
        self.places[id(obj)] = place
        self.kept.append(obj)
        return (name_of(type(obj)), *self.contents(obj, place, of_argument))

    def held(self, obj: Any, place: str, of_argument: bool) -> frozenset[str]:
        """Where this very immutable object stands in the arguments."""
        if of_argument:
            self.arguments.setdefault(id(obj), set()).add(place)
            self.kept.append(obj)
        return frozenset(self.arguments.get(id(obj), ()))

    def contents(self, obj: Any, place: str, of_argument: bool) -> Iterator[Any]:
        """What a mutable object is compared by."""

        def take(part: Any, name: str) -> Any:
            return self.take(part, f"{place}{name}", of_argument=of_argument)

        if isinstance(obj, torch.Tensor):
            yield self.tensor(obj, place)
        elif isinstance(obj, np.ndarray):
            yield obj.dtype.str, obj.shape, obj.strides, obj.tolist()
        elif isinstance(obj, torch.Generator):
            yield Array(obj.get_state())
            return
        elif isinstance(obj, (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)):
            yield name_of(obj)
            return
        elif isinstance(obj, enum.Enum):
            yield obj.name
        elif isinstance(obj, functools.partial):
            yield take(obj.func, ".func"), take(obj.args, ".args"), take(obj.keywords, ".keywords")
        elif isinstance(obj, types.MethodType):
            yield take(obj.__func__, ".__func__"), take(obj.__self__, ".__self__")
            return
        elif isinstance(obj, BaseException):
            yield take(obj.args, ".args"), take(obj.__cause__, ".__cause__"), take(obj.__context__, ".__context__")
        elif isinstance(obj, Mapping):
            pairs = dict.items(obj) if isinstance(obj, dict) else obj.items()
            keys = [self.take(key, f"{place}<key {n}>") for n, (key, _) in enumerate(pairs)]
            yield list(zip(keys, [take(value, f"[{key!r}]") for key, value in pairs], strict=True))
        elif isinstance(obj, (list, collections.deque, set)):
            yield self.items(obj, place, of_argument)
        elif isinstance(obj, weakref.ref):
            yield take(obj(), "()")
        yield [(name, take(value, f".{name}")) for name, value in attributes(obj)]

    def items(self, obj: Any, place: str, of_argument: bool) -> list[Any]:
        """The copies of a collection's items; a set's in an order of their own."""
        copies = [self.take(item, f"{place}[{n}]", of_argument=of_argument) for n, item in enumerate(obj)]
        return sorted(copies, key=repr) if isinstance(obj, (set, frozenset)) else copies

    def tensor(self, t: torch.Tensor, place: str) -> tuple[Any, ...]:
        """Metadata, shared memory and contents."""
        meta = (t.dtype, str(t.device), tuple(t.shape), t.requires_grad, t.is_leaf, t.is_inference())
        if t.layout != torch.strided:
            return (*meta, t.layout, Array(t.detach().to_dense()))
        shared = [(other, byte_distance(t, known)) for other, known in self.tensors if share_memory(t, known)]
        self.tensors.append((place, t))
        return (*meta, t.stride(), shared, Array(t.detach().clone()))


def name_of(obj: Any) -> str:
    """What a class, function or module is called: worlds built apart have classes of their own."""
    return f"{getattr(obj, '__module__', '')}.{getattr(obj, '__qualname__', obj.__name__)}"


def attributes(obj: Any) -> list[tuple[str, Any]]:
    """What an object holds in `__dict__`, in order, and in slots."""
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
    """How far the first element of `a` lies behind that of `b`, in bytes."""
    return a.data_ptr() - b.data_ptr()
