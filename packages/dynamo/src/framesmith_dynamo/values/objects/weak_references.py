"""`weakref.ref` objects: calling one gives its referent, which must be alive at every call if it was while tracing."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.wrap_registry import wraps_type
from framesmith_guards import WeakRefSource

if TYPE_CHECKING:
    from framesmith_guards import Source


class WeakReferenceValue(Value):
    """A weak reference that exists."""

    python_types = (weakref.ref,)
    __slots__ = ("ref",)

    def __init__(self, ref: weakref.ref[Any], *, source: Source) -> None:
        super().__init__(source=source)
        self.ref = ref

    def hash_key(self, tr: Tracer) -> object:
        return self.ref

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        assert self.source is not None
        return tr.wrap(self.ref(), WeakRefSource(self.source))


@wraps_type(weakref.ref)
def wrap_weak_reference(tr: Tracer, obj: weakref.ref[Any], source: Source) -> Value:
    """A weak reference met at a source; the referent is guarded when it is asked for."""
    tr.guard(source, "TYPE_MATCH", weakref.ref)
    return WeakReferenceValue(obj, source=source)
