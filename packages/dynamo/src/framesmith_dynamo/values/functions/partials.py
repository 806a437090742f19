"""`functools.partial` objects, existing or made while tracing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.containers.tuple import TupleValue
from framesmith_dynamo.values.errors import refuse
from framesmith_dynamo.values.wrap_registry import wraps_type
from framesmith_guards import AttrSource

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source


class PartialValue(Value):
    """A callable with bound leading arguments and keywords; `keywords` is a dict, which may change."""

    python_types = (functools.partial,)
    exact_operators = True
    __slots__ = ("args", "function", "keywords")

    def __init__(
        self, function: Value, args: Sequence[Value], keywords: Value, *, source: Source | None = None
    ) -> None:
        super().__init__(source=source)
        self.function = function
        self.args = tuple(args)
        self.keywords = keywords

    def describe(self) -> str:
        return f"partial of {self.function.describe()}"

    def keywords_now(self, tr: Tracer) -> dict[str, Value]:
        """Return the current bound keywords."""
        return {key.as_constant(): self.keywords.getitem(tr, key) for key in self.keywords.unpack(tr)}

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        if len(args) < (count := sum(map(is_placeholder, self.args))):
            refuse(tr, _with_placeholders(count), args, {})
        return tr.call(self.function, filled(self.args, args), {**self.keywords_now(tr), **kwargs})

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "__class__":
            return tr.constant(functools.partial)
        if name == "func":
            return self.function
        if name == "args":
            return TupleValue(self.args)
        if name == "keywords":
            return self.keywords
        return super().getattr_(tr, name)

    def hash_key(self, tr: Tracer) -> object:
        return self

    def referents(self) -> Iterable[Value]:
        return (self.function, *self.args, self.keywords)

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None:
            super().reconstruct(codegen)
            return
        codegen.push_call(build_partial, (self.function, self.keywords, *self.args))


#: Stands for an argument given at the call, where Python has it (3.14).
PLACEHOLDER: Final[Any] = getattr(functools, "Placeholder", None)


def is_placeholder(value: Value) -> bool:
    """Whether this is `functools.Placeholder`."""
    return PLACEHOLDER is not None and value.python_type() is type(PLACEHOLDER)


def filled(args: Args, given: Args) -> list[Value]:
    """Return the arguments of a partial object with placeholders replaced by the first ones given, and the others."""
    rest = list(given)
    taken = [rest.pop(0) if is_placeholder(arg) and rest else arg for arg in args]
    return taken + rest


def _with_placeholders(count: int) -> Callable[..., Any]:
    """Return a partial object that needs so many arguments."""
    return functools.partial(lambda *args: None, *[PLACEHOLDER] * count, None)


def build_partial(function: Any, keywords: dict[str, Any], *args: Any) -> functools.partial[Any]:
    """Called by compiled code: return a partial object whose `keywords` is this very dict."""
    made: Any = functools.partial(function)
    made.__setstate__((function, args, keywords, None))
    return made  # type: ignore[no-any-return]


@wraps_type(functools.partial)
def wrap_partial(tr: Tracer, obj: functools.partial[Any], source: Source) -> Value:
    """Wrap a partial object: its function and arguments are wrapped one by one, its keywords as a dict."""
    tr.guard(source, "TYPE_MATCH", functools.partial)
    args = tr.wrap(obj.args, AttrSource(source, "args")).unpack(tr)
    keywords = tr.wrap(obj.keywords, AttrSource(source, "keywords"))
    return PartialValue(tr.wrap(obj.func, AttrSource(source, "func")), args, keywords, source=source)
