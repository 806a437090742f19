"""Slices and ranges."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from framesmith_dynamo.breaks import NOT_CONSTANT, GraphBreak
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.constants.constant import MAX_FOLDED, fold, plain
from framesmith_dynamo.values.containers.base import ContainerValue
from framesmith_dynamo.values.containers.sequence import any_subscript
from framesmith_dynamo.values.iteration.iterators import SequenceIterator, tracked
from framesmith_dynamo.values.wrap_registry import build, builds_type, wraps_type

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source


class SliceValue(ContainerValue):
    """A slice; its parts are values, since tensors can be sliced by tensors."""

    python_types = (slice,)
    __slots__ = ("start", "step", "stop")

    def __init__(self, start: Value, stop: Value, step: Value) -> None:
        super().__init__()
        self.start, self.stop, self.step = start, stop, step

    def is_constant(self) -> bool:
        return all(part.is_constant() for part in self.referents())

    def can_be_constant(self) -> bool:
        return all(part.can_be_constant() for part in self.referents())

    def as_constant(self) -> Any:
        return slice(*(part.as_constant() for part in self.referents()))

    def as_plain(self) -> Any:
        return self.as_constant()

    def as_proxy(self) -> Any:
        return slice(*(part.as_proxy() for part in self.referents()))

    def real_slice(self, tr: Tracer) -> slice:
        if not self.can_be_constant():
            raise GraphBreak(NOT_CONSTANT, f"{self.describe()} as an index")
        found: slice = self.as_constant()
        if any(not isinstance(part, int | None) for part in (found.start, found.stop, found.step)):
            tr.raise_(TypeError, "slice indices must be integers or None or have an __index__ method")
        if found.step == 0:
            tr.raise_(ValueError, "slice step cannot be zero")
        return found

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name in ("start", "stop", "step"):
            part: Value = getattr(self, name)
            return part
        return super().getattr_(tr, name)

    def m_indices(self, tr: Tracer, length: Value, /) -> Value:
        return fold(tr, slice.indices, (self.real_slice(tr), plain(length)))

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if not isinstance(other, SliceValue) or op not in ("==", "!="):
            return None
        return tr.constant((plain(self) == plain(other)) is (op == "=="))

    def bool_(self, tr: Tracer) -> bool:
        return True

    def referents(self) -> Iterable[Value]:
        return (self.start, self.stop, self.step)

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None:
            super().reconstruct(codegen)
            return
        for part in self.referents():
            codegen(part)
        codegen.build("slice", 3)


class RangeValue(ContainerValue):
    """A range of known ints: a constant."""

    python_types = (range,)
    __slots__ = ("value",)

    def __init__(self, value: range, *, source: Source | None = None) -> None:
        super().__init__(source=source)
        self.value = value

    def is_constant(self) -> bool:
        return True

    def as_constant(self) -> range:
        return self.value

    def as_plain(self) -> Any:
        return self.value

    def as_proxy(self) -> Any:
        return self.value

    def hash_key(self, tr: Tracer) -> object:
        return self.value

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name in ("start", "stop", "step"):
            return tr.constant(getattr(self.value, name))
        return super().getattr_(tr, name)

    def getitem(self, tr: Tracer, key: Value) -> Value:
        return fold(tr, range.__getitem__, (self.value, any_subscript(tr, self, key)))

    def len_(self, tr: Tracer) -> Value:
        return fold(tr, len, (self.value,))

    def bool_(self, tr: Tracer) -> bool:
        return bool(self.value)

    def iter_(self, tr: Tracer) -> Value:
        return tracked(tr, SequenceIterator(self))

    def size_now(self) -> int:
        return len(self.value)

    def item_now(self, tr: Tracer, index: int) -> Value:
        return tr.constant(self.value[index])

    def m___reversed__(self, tr: Tracer) -> Value:
        return tracked(tr, SequenceIterator(RangeValue(self.value[::-1])))

    def unpack(self, tr: Tracer) -> list[Value]:
        if self.value[MAX_FOLDED:]:
            raise GraphBreak(NOT_CONSTANT, f"the items of a range of more than {MAX_FOLDED}")
        return [tr.constant(item) for item in self.value]

    def contains(self, tr: Tracer, item: Value) -> Value:
        return fold(tr, self.value.__contains__, (plain(item),))

    def m_index(self, tr: Tracer, item: Value, /) -> Value:
        return fold(tr, self.value.index, (plain(item),))

    def m_count(self, tr: Tracer, item: Value, /) -> Value:
        return fold(tr, self.value.count, (plain(item),))

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if not isinstance(other, RangeValue) or op not in ("==", "!="):
            return None
        return tr.constant((self.value == other.value) is (op == "=="))

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.load_const(self.value)


@builds_type(slice)
def _build_slice(tr: Tracer, obj: slice) -> Value:
    return SliceValue(build(tr, obj.start), build(tr, obj.stop), build(tr, obj.step))


@builds_type(range)
def _build_range(tr: Tracer, obj: range) -> Value:
    return RangeValue(obj)


@wraps_type(range)
def wrap_range(tr: Tracer, obj: range, source: Source) -> Value:
    tr.guard(source, "EQUALS_MATCH", obj)
    value = RangeValue(obj, source=source)
    value.real = obj
    return value


@wraps_type(slice)
def wrap_slice(tr: Tracer, obj: slice, source: Source) -> Value:
    tr.guard(source, "EQUALS_MATCH", obj)
    value = SliceValue(build(tr, obj.start), build(tr, obj.stop), build(tr, obj.step))
    value.source = source
    value.real = obj
    return value
