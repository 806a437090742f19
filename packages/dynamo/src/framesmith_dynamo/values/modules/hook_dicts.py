"""Registries of hooks: OrderedDicts whose keys are the numbers that torch gives to hooks, counted up in the process.

A hook that is registered again has another number. The trace compares numbers with each other and knows items by their
positions, so that calls which replace hooks need not be compiled again; a number that is read is guarded.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from torch.utils.hooks import RemovableHandle

from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.constants.constant import ConstantValue
from framesmith_dynamo.values.containers.dict import DictValue, Entry, wrap_dict
from framesmith_dynamo.values.containers.items import LazyItem
from framesmith_dynamo.values.wrap_registry import wraps_type
from framesmith_guards import DictKeySource, DictValueSource, ShapeExpr
from framesmith_guards.kinds.predicates import positions_of

if TYPE_CHECKING:
    from framesmith_guards import Source


class HookNumber(ConstantValue):
    """The number of an existing hook. Reading it as a constant guards it; a trace has one value for each number."""

    __slots__ = ("number", "tr")

    def __init__(self, tr: Tracer, number: int, source: Source) -> None:
        Value.__init__(self, source=source)
        self.tr = tr
        self.number = number

    @property
    def value(self) -> int:
        """The number, guarded from now on."""
        assert self.source is not None
        self.tr.guard(self.source, "EQUALS_MATCH", self.number)
        return self.number

    def python_type(self) -> type:
        return int

    def is_constant(self) -> bool:
        return False

    def can_be_constant(self) -> bool:
        return True

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if not isinstance(other, HookNumber) or op not in ("==", "!="):
            return super().compare(tr, op, other)
        if other is not self:
            self.guard_different(other)
        return tr.constant((other is self) is (op == "=="))

    def guard_different(self, other: HookNumber) -> None:
        """Guard that this is not the other number."""
        assert self.source is not None
        assert other.source is not None
        self.tr.guard(self.source, "SHAPE", ShapeExpr.comparing(self.source, other.source, equal=False))

    def reconstruct(self, codegen: Any) -> None:
        Value.reconstruct(self, codegen)


def hook_number(tr: Tracer, number: int, source: Source) -> HookNumber:
    """Return the value of the number of a hook, found at a source; that it is at all its sources is guarded."""
    known = tr.facts.hook_numbers.get(number)
    if known is None:
        known = tr.facts.hook_numbers[number] = HookNumber(tr, number, source)
    elif source != known.source:
        assert known.source is not None
        tr.guard(source, "SHAPE", ShapeExpr.comparing(known.source, source, equal=True))
    assert isinstance(known, HookNumber)
    return known


class HookDictValue(DictValue):
    """An existing registry of hooks, or an empty OrderedDict, which may be one."""

    __slots__ = ()

    def hashed(self, tr: Tracer, key: Value, holder: type | None = None) -> object:
        """Return a number itself as its key; a constant is compared with the numbers, which are read."""
        if isinstance(key, HookNumber):
            return key
        found = super().hashed(tr, key, holder)
        if isinstance(found, Value):
            return found
        return next((one for one in self.entries if isinstance(one, HookNumber) and one.value == found), found)

    def guard_key_presence(self, tr: Tracer, hashed: object, key: Value) -> None:
        if not isinstance(hashed, HookNumber):
            super().guard_key_presence(tr, hashed, key)
        elif not any(hashed in known for known in (self.found, self.stored, self.deleted)):
            self.guard_keys(tr)
            for one in self.found:
                if isinstance(one, HookNumber):
                    hashed.guard_different(one)


def _has_hooks(obj: OrderedDict[Any, Any]) -> bool:
    numbers = range(RemovableHandle.next_id)
    return all(type(key) is int and key in numbers and (item is True or callable(item)) for key, item in obj.items())


@wraps_type(OrderedDict)
def wrap_ordered(tr: Tracer, obj: OrderedDict[Any, Any], source: Source) -> Value:
    """Wrap an OrderedDict found at a source: a registry of hooks by positions, guarded from the start, or by keys."""
    if not _has_hooks(obj):
        return wrap_dict(tr, obj, source)
    tr.guard(source, "TYPE_MATCH", OrderedDict)
    value = HookDictValue(OrderedDict, source=source)
    positions = positions_of(obj)
    if positions:
        tr.guard(source, "NUMBERED_KEYS", positions)
        value.keys_fixed = True
    for position, (number, hook) in zip(positions, OrderedDict.items(obj), strict=True):
        key = hook_number(tr, number, DictKeySource(source, position))
        value.entries[key] = Entry(key, LazyItem(tr, hook, source, position, DictValueSource))
        value.found.add(key)
    tr.journal.track_existing(value, obj)
    return value
