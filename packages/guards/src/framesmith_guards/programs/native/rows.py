"""Native forms of source kinds and guard kinds: one row each, and the reference for the rest."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final, Protocol, cast

import torch

from framesmith_guards.guard import Guard
from framesmith_guards.kinds import predicates
from framesmith_guards.programs.native.probing import dtype_number
from framesmith_guards.sources import (
    AttrSource,
    BuiltinSource,
    CellContentsSource,
    ClosureSource,
    DictKeySource,
    DictValueSource,
    FunctionSource,
    GlobalsDictSource,
    GlobalSource,
    InstanceDictSource,
    ItemSource,
    LocalSource,
    ModuleSource,
    Source,
    TypeSource,
)
from framesmith_guards.sources.base import Root
from framesmith_guards.values.refs import Ref


@dataclass
class Operation:
    """An instruction before its position is known: the operation and its registers."""

    name: str
    a: int = -1
    b: int = -1
    n: int = 0
    address: int = 0
    obj: Any = None
    operands: tuple[int, ...] = ()
    reads: tuple[int, ...] = ()


class Target(Protocol):
    """The program being made, for a row."""

    argnames: Any
    freevars: Any

    def register(self, source: Source) -> int: ...

    def tensor(self, guard: Guard) -> int | None:
        """The index of a tensor guard's native spec, if it has one."""

    def are_native(self, sources: Sequence[Source]) -> bool:
        """Whether all of these are tensors with native checks before this one."""

    def shape(self, guard: Guard) -> tuple[int, tuple[int, ...]] | None:
        """The condition of a shape guard and its registers, if it is native."""


@dataclass(frozen=True, eq=False, repr=False)
class ModulesSource(Root):
    """`sys.modules`: only programs load it."""

    def read(self, base: Any, args: Mapping[str, object], function: FunctionType) -> object:
        return sys.modules

    def label(self, base: str) -> str:
        return "sys.modules"


Load = Callable[[Target, Any], Operation]
Check = Callable[[Target, Guard], Operation | None]


NO_FUNCTION: Final = cast(FunctionType, lambda: None)
"""Stands for the called function where a step does not read it."""

LOADS: Final[dict[type[Source], Load]] = {
    LocalSource: lambda t, s: Operation("LOAD_ARG", n=list(t.argnames).index(s.local)),
    FunctionSource: lambda t, s: Operation("LOAD_FUNCTION"),
    GlobalsDictSource: lambda t, s: Operation("LOAD_GLOBALS"),
    GlobalSource: lambda t, s: Operation("LOAD_ITEM", obj=s.global_name),
    BuiltinSource: lambda t, s: Operation("LOAD_BUILTIN", obj=s.builtin),
    ClosureSource: lambda t, s: Operation("LOAD_CLOSURE", n=list(t.freevars).index(s.freevar)),
    ModulesSource: lambda t, s: Operation("LOAD_CONSTANT", obj=sys.modules),
    ModuleSource: lambda t, s: Operation("LOAD_ITEM", obj=s.module),
    AttrSource: lambda t, s: Operation("LOAD_ATTR", obj=s.attr),
    InstanceDictSource: lambda t, s: Operation("LOAD_DICT", obj="__dict__"),
    ItemSource: lambda t, s: Operation("LOAD_ITEM", obj=s.key),
    TypeSource: lambda t, s: Operation("LOAD_TYPE"),
    DictKeySource: lambda t, s: Operation("LOAD_KEY", n=s.index),
    DictValueSource: lambda t, s: Operation("LOAD_VALUE", n=s.index),
    CellContentsSource: lambda t, s: Operation("LOAD_CELL"),
}


def reference_load(source: Source) -> Operation:
    """Return a step by the source's own `read`."""
    return Operation("LOAD_CALL", obj=lambda base: source.read(base, {}, NO_FUNCTION))


def reference_check(guard: Guard) -> Operation:
    """Return a check by the kind's predicate; the caller fills in the operands."""
    holds, expected = guard.kind.holds, guard.expected
    return Operation("CALL_CHECK", obj=lambda value, *others: holds(value, expected, *others))


def _simple(name: str, **fields: Callable[[Any], Any]) -> Check:
    def row(target: Target, guard: Guard) -> Operation:
        values = {field: make(guard.expected) for field, make in fields.items()}
        return Operation(name, a=target.register(guard.source), **values)

    return row


def _address(expected: Any) -> int:
    address: int = expected.address
    return address


def _itself(expected: Any) -> Any:
    return expected


_SINGLETONS: Final = (torch.dtype, torch.layout, torch.memory_format, bool, type(None), type(...))


def _equals(target: Target, guard: Guard) -> Operation:
    a, expected = target.register(guard.source), guard.expected
    if isinstance(expected, _SINGLETONS):
        return Operation("IS", a=a, address=id(expected), obj=expected)
    return Operation("IS_CONSTANT", a=a, obj=expected)


def _tensor(target: Target, guard: Guard) -> Operation | None:
    spec = target.tensor(guard)
    return None if spec is None else Operation("IS_TENSOR", a=target.register(guard.source), n=spec)


def _leaf(target: Target, guard: Guard) -> Operation | None:
    number = dtype_number(guard.expected) if target.are_native((guard.source,)) else None
    if number is None:
        return None
    return Operation("IS_PLAIN_LEAF", a=target.register(guard.source), n=number, obj=guard.expected)


def _shape(target: Target, guard: Guard) -> Operation | None:
    made = target.shape(guard)
    if made is None:
        return None
    index, registers = made
    return Operation("HAS_SHAPE", n=index, reads=registers)


def _duplicate(target: Target, guard: Guard) -> Operation:
    return Operation("IS_SAME", a=target.register(guard.source), b=target.register(guard.expected))


def _distinct(target: Target, guard: Guard) -> Operation:
    return Operation("ARE_DISTINCT", operands=tuple(map(target.register, (guard.source, *guard.operands))))


def _share_storage(target: Target, guard: Guard) -> Operation | None:
    if not target.are_native((guard.source, guard.expected)):
        return None
    return Operation("SHARE_STORAGE", a=target.register(guard.source), b=target.register(guard.expected))


def _disjoint(op: str) -> Check:
    def check(target: Target, guard: Guard) -> Operation | None:
        sources = (guard.source, *guard.operands)
        if not target.are_native(sources):
            return None
        return Operation(op, operands=tuple(map(target.register, sources)))

    return check


def _not_subclass(expected: Any, value: Any) -> bool:
    return predicates.not_subclass(value, expected)


def _keys(expected: tuple[Any, ...]) -> tuple[Any, ...]:
    """The keys, those held by weak handles as weak references."""
    return tuple(key.reference if isinstance(key, Ref) and key.weak else key for key in expected)


CHECKS: Final[dict[str, Check]] = {
    "TYPE_MATCH": _simple("IS_TYPE", address=_address),
    "ID_MATCH": _simple("IS", address=_address),
    "NONE_MATCH": _simple("IS", address=lambda _: id(None)),
    "NOT_NONE": _simple("IS_NOT", address=lambda _: id(None)),
    "BOOL_MATCH": _simple("IS", address=id),
    "EQUALS_MATCH": _equals,
    "LENGTH": _simple("HAS_LENGTH", n=_itself),
    "DICT_KEYS": _simple("HAS_KEYS", obj=_keys),
    "DICT_CONTAINS": _simple("HAS_KEY", obj=_itself),
    "DICT_NOT_CONTAINS": _simple("HAS_NO_KEY", obj=_itself),
    "CLASS_LAYOUT": _simple("HAS_LAYOUT", obj=lambda expected: expected.holds),
    "NOT_SUBCLASS": _simple("NOT_SUBCLASS", obj=lambda expected: functools.partial(_not_subclass, expected)),
    "HASATTR": _simple("HAS_ATTR", obj=_itself),
    "NO_HASATTR": _simple("HAS_NO_ATTR", obj=_itself),
    "FUNCTION_CODE": _simple("HAS_CODE", address=_address),
    "TENSOR_MATCH": _tensor,
    "PLAIN_LEAF": _leaf,
    "DUPLICATE_INPUT": _duplicate,
    "NOT_ALIASED": _distinct,
    "SAME_STORAGE": _share_storage,
    "NO_OVERLAP": _disjoint("ARE_DISJOINT"),
    "ALL_DISJOINT": _disjoint("ARE_ALL_DISJOINT"),
    "SHAPE": _shape,
}


def _is_atomic(value: object) -> bool:
    """Whether `is_atomic` of blocks.c holds, or the value is another singleton, which is compared by identity."""
    if type(value) is tuple:
        return all(map(_is_atomic, value))
    return type(value) in (int, float, complex, str, bytes) or isinstance(value, _SINGLETONS)


Belongs = Callable[[Guard, set[Source]], bool]

BLOCK_KINDS: Final[dict[str, Belongs]] = {
    **dict.fromkeys(
        (
            "TYPE_MATCH",
            "ID_MATCH",
            "NONE_MATCH",
            "NOT_NONE",
            "BOOL_MATCH",
            "LENGTH",
            "DICT_KEYS",
            "DICT_CONTAINS",
            "DICT_NOT_CONTAINS",
            "FUNCTION_CODE",
        ),
        lambda guard, tensors: True,
    ),
    "EQUALS_MATCH": lambda guard, tensors: _is_atomic(guard.expected),
    **dict.fromkeys(("TENSOR_MATCH", "PLAIN_LEAF"), lambda guard, tensors: guard.source in tensors),
}
"""The kinds that a block's proof can cover, and for which guards: `prove` of blocks.c has their instructions."""
