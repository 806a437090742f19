"""Compiled functions (`framesmith_frames.CompiledFunction`), which are traced as the function they wrap."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.wrap_registry import wraps_type
from framesmith_frames import CompiledFunction
from framesmith_guards import AttrSource

if TYPE_CHECKING:
    from framesmith_guards import Source


class CompiledFunctionValue(Value):
    """A compiled function used in the frame: a call of it is a call of the wrapped function."""

    python_types = (CompiledFunction,)
    __slots__ = ("wrapped",)

    def __init__(self, wrapped: Value, *, source: Source) -> None:
        super().__init__(source=source)
        self.wrapped = wrapped

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        return tr.call(self.wrapped, args, kwargs)

    def getattr_(self, tr: Tracer, name: str) -> Value:
        return self.wrapped if name == "__wrapped__" else self.wrapped.getattr_(tr, name)

    def hash_key(self, tr: Tracer) -> object:
        return self

    def referents(self) -> Iterable[Value]:
        return (self.wrapped,)


@wraps_type(CompiledFunction)
def wrap_compiled_function(tr: Tracer, obj: CompiledFunction[..., object], source: Source) -> Value:
    """Wrap a compiled function: its type is guarded; the wrapped function has guards of its own."""
    tr.guard(source, "TYPE_MATCH", CompiledFunction)
    return CompiledFunctionValue(tr.wrap(obj.__wrapped__, AttrSource(source, "__wrapped__")), source=source)
