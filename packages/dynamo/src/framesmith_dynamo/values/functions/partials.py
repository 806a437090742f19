"""`functools.partial` objects, found or made while tracing."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.containers.dict import new_dict
from framesmith_dynamo.values.containers.tuple import TupleValue
from framesmith_dynamo.values.wrap_registry import wraps_type
from framesmith_guards import AttrSource, ItemSource

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source


class PartialValue(Value):
    """A callable with its first arguments and some keywords filled in."""

    python_types = (functools.partial,)
    exact_operators = True
    __slots__ = ("args", "function", "keywords")

    def __init__(
        self, function: Value, args: Sequence[Value], keywords: Mapping[str, Value], *, source: Source | None = None
    ) -> None:
        super().__init__(source=source)
        self.function = function
        self.args = tuple(args)
        self.keywords = dict(keywords)

    def python_type(self) -> type:
        return functools.partial

    def describe(self) -> str:
        return f"partial of {self.function.describe()}"

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        return tr.call(self.function, (*self.args, *args), {**self.keywords, **kwargs})

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "func":
            return self.function
        if name == "args":
            return TupleValue(self.args)
        if name == "keywords":
            return new_dict(tr, [(tr.constant(key), value) for key, value in self.keywords.items()])
        return super().getattr_(tr, name)

    def bool_(self, tr: Tracer) -> bool:
        return True

    def hash_key(self, tr: Tracer) -> object:
        return self

    def referents(self) -> Iterable[Value]:
        return (self.function, *self.args, *self.keywords.values())

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None:
            super().reconstruct(codegen)
            return
        codegen.push_callable(lambda: codegen.load_const(functools.partial))
        for value in (self.function, *self.args, *self.keywords.values()):
            codegen(value)
        codegen.call(1 + len(self.args) + len(self.keywords), tuple(self.keywords))


@wraps_type(functools.partial)
def wrap_partial(tr: Tracer, obj: functools.partial[Any], source: Source) -> Value:
    """A partial object: its function, arguments and keywords are wrapped one by one."""
    tr.guard(source, "TYPE_MATCH", functools.partial)
    tr.guard(AttrSource(source, "args"), "LENGTH", len(obj.args))
    tr.guard(AttrSource(source, "keywords"), "DICT_KEYS", tuple(obj.keywords))
    args = [tr.wrap(arg, ItemSource(AttrSource(source, "args"), i)) for i, arg in enumerate(obj.args)]
    keywords = {key: tr.wrap(arg, ItemSource(AttrSource(source, "keywords"), key)) for key, arg in obj.keywords.items()}
    return PartialValue(tr.wrap(obj.func, AttrSource(source, "func")), args, keywords, source=source)
