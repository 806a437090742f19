"""frozendict (PEP 814, CPython 3.15): a dict that never changes. Older versions of Python have none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from framesmith_dynamo.values import operations
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.bound_method import BuiltinMethodValue
from framesmith_dynamo.values.constants.constant import plain
from framesmith_dynamo.values.containers.base import ContainerValue
from framesmith_dynamo.values.containers.dict import DictValue, Entry, fill_from
from framesmith_dynamo.values.containers.items import resolved
from framesmith_dynamo.values.containers.mappings import pairs_of
from framesmith_dynamo.values.iteration.consuming import each
from framesmith_dynamo.values.wrap_registry import build, builds_type, wraps_type
from framesmith_guards.values.constants import FROZEN_DICTS

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source


class FrozenDictValue(DictValue):
    """A frozendict. Create new ones with `frozen_of`."""

    python_types = FROZEN_DICTS
    __slots__ = ()

    def __init__(self, *, source: Source | None = None) -> None:
        super().__init__(FROZEN_DICTS[0], source=source)

    def hash_key(self, tr: Tracer) -> object:
        pairs = zip(self.entries, self.values_now(tr), strict=True)
        return self.cls((hashed, operations.hash_key(tr, value)) for hashed, value in pairs)

    def call_method(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if not hasattr(self.cls, name):
            return tr.call(self.getattr_(tr, name), args, kwargs)
        return super().call_method(tr, name, args, kwargs)

    def getattr_(self, tr: Tracer, name: str) -> Value:
        return BuiltinMethodValue(self, name) if name == "__hash__" else super().getattr_(tr, name)

    def setattr_(self, tr: Tracer, name: str, value: Value) -> None:
        ContainerValue.setattr_(self, tr, name, value)

    def setitem(self, tr: Tracer, key: Value, value: Value) -> NoReturn:
        tr.raise_(TypeError, f"'{self.cls.__name__}' object does not support item assignment")

    def delitem(self, tr: Tracer, key: Value) -> NoReturn:
        tr.raise_(TypeError, f"'{self.cls.__name__}' object does not support item deletion")

    def missing(self, tr: Tracer, key: Value) -> Value:
        return tr.raise_(KeyError, key)

    def united(self, tr: Tracer, left: Value, right: Value) -> Value | None:
        items, others = left.builtin_contents(), right.builtin_contents()
        if not isinstance(items, DictValue) or not isinstance(others, DictValue):
            return None
        if left is self and not others.len_(tr).as_constant():
            return self
        return frozen_of(tr, (*items.pairs_now(tr), *pairs_of(tr, right)))

    def inplace_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        return None

    def copied(self, tr: Tracer) -> DictValue:
        return self

    def m___hash__(self, tr: Tracer) -> Value:
        return tr.call(tr.constant(hash), (self,), {})

    def m_fromkeys(self, tr: Tracer, keys: Value, value: Value | None = None, /) -> Value:
        filler = tr.constant(None) if value is None else value
        return frozen_of(tr, ((key, filler) for key in each(tr, keys)))

    def as_plain(self) -> Any:
        pairs = [(plain(resolved(entry.key)), plain(self._value_of(entry))) for entry in self.entries.values()]
        return self.cls(pairs)

    def contents_type(self) -> type:
        return self.cls

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None:
            Value.reconstruct(self, codegen)
            return
        codegen.push_function(self.cls)
        self.reconstruct_contents(codegen)
        codegen.call(1)


def frozen_of(tr: Tracer, pairs: Iterable[tuple[Value, Value]]) -> FrozenDictValue:
    """Return a frozendict made in the trace; of equal keys the first one stays, with the last value."""
    made = FrozenDictValue()
    for key, item in pairs:
        hashed = operations.hash_key(tr, key, dict)
        known = made.entries.get(hashed)
        made.entries[hashed] = Entry(key if known is None else known.key, item)
    return made


@builds_type(*FROZEN_DICTS)
def _build_frozen_dict(tr: Tracer, obj: Any) -> Value:
    return frozen_of(tr, [(build(tr, key), build(tr, item)) for key, item in obj.items()])


@wraps_type(*FROZEN_DICTS)
def wrap_frozen_dict(tr: Tracer, obj: Any, source: Source) -> Value:
    """Wrap a frozendict found at a source: its type is guarded; keys and items when they are read."""
    tr.guard(source, "TYPE_MATCH", type(obj))
    value = FrozenDictValue(source=source)
    value.real = obj
    fill_from(tr, value, obj, source)
    return value
