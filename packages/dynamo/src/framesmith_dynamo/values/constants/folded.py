"""Immutable objects (typing objects, patterns, C descriptors): every read folds, writes break."""

from __future__ import annotations

import dataclasses
import operator
import re
import types
import typing
from collections.abc import Callable, ItemsView, KeysView, ValuesView
from typing import TYPE_CHECKING, Any, Final

from framesmith_dynamo.breaks import UNSUPPORTED_CALL, GraphBreak
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.bound_method import BuiltinMethodValue
from framesmith_dynamo.values.constants.constant import fold, plain_arguments
from framesmith_dynamo.values.constants.lazy_types import LAZY_TYPE, TYPE_PARAMETERS, why_not_evaluated
from framesmith_dynamo.values.known import KnownValue
from framesmith_dynamo.values.wrap_registry import builds_type, wraps_type
from framesmith_guards import AttrSource
from framesmith_guards.values.constants import SINGLETON_TYPES, builtin_type, is_constant

if TYPE_CHECKING:
    from framesmith_guards import Source

#: Types of unions, which are one type on newer versions.
UNIONS: Final[tuple[type, ...]] = tuple({types.UnionType: None, type(typing.Union[int, str]): None})  # noqa: UP007
#: Exact types whose objects never change; some are one type on newer versions.
IMMUTABLE_C_TYPES: Final = tuple(
    dict.fromkeys(
        (
            types.GenericAlias,
            *UNIONS,
            type(typing.Any),
            type(typing.List[int]),  # noqa: UP006
            type(typing.Callable[[int], int]),
            type(Callable[[int], int]),
            type(typing.List),  # noqa: UP006
            type(typing.Tuple),  # noqa: UP006
            type(typing.Callable),
            type(typing.Optional),
            re.Pattern,
            type(dataclasses._FIELD),  # type: ignore[attr-defined]
            type(dataclasses.MISSING),
            types.MemberDescriptorType,
            types.GetSetDescriptorType,
            *builtin_type("sentinel"),
            *SINGLETON_TYPES,
            *TYPE_PARAMETERS,
        )
    )
)
#: Attributes that identify an object of a type whose objects are made again and again, or have no weak references.
IDENTIFYING: Final[dict[type, tuple[str, ...]]] = {
    types.UnionType: ("__args__",),
    type(typing.Optional): ("_name",),
    types.MemberDescriptorType: ("__objclass__", "__name__"),
    types.GetSetDescriptorType: ("__objclass__", "__name__"),
}


class FoldedValue(KnownValue):
    """A real object of one of `IMMUTABLE_C_TYPES`."""

    python_types = (*IMMUTABLE_C_TYPES, re.Match)
    exact_operators = True
    __slots__ = ()

    def bool_(self, tr: Tracer) -> bool:
        return bool(self.obj)

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "__class__":
            return tr.constant(type(self.obj))
        if why := why_not_evaluated(tr, self.obj, name):
            raise GraphBreak(LAZY_TYPE, f"{name!r} of {self.obj!r}: {why}")
        try:
            found = getattr(self.obj, name)
        except AttributeError as error:
            tr.raise_(AttributeError, *error.args)
        if isinstance(found, types.BuiltinMethodType | types.MethodType | types.MethodWrapperType):
            return BuiltinMethodValue(self, name)
        return tr.constant(found)

    def call_method(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        found = self.getattr_(tr, name)
        if not isinstance(found, BuiltinMethodValue):
            return tr.call(found, args, kwargs)
        if isinstance(self.obj, re.Pattern | re.Match):
            return fold_strings(tr, getattr(self.obj, name), args, kwargs)
        plain_args, plain_kwargs = plain_arguments(args, kwargs)
        result = fold_list(getattr(self.obj, name)(*plain_args, **plain_kwargs))
        return tr.constant(result)

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        if not callable(self.obj):
            tr.raise_(TypeError, f"'{type(self.obj).__name__}' object is not callable")
        origin = getattr(self.obj, "__origin__", None)
        if not isinstance(origin, type) or not getattr(self.obj, "_inst", True):
            return super().call(tr, args, kwargs)
        cls = tr.constant(origin) if self.source is None else tr.wrap(origin, AttrSource(self.source, "__origin__"))
        return self._noted_on(tr, tr.call(cls, args, kwargs))

    def _noted_on(self, tr: Tracer, made: Value) -> Value:
        """Record `__orig_class__` on an object made by a generic alias, where attributes can be set."""
        cls = made.python_type()
        if not cls.__dictoffset__:
            return made
        setter: Any = cls.__setattr__
        if setter is not object.__setattr__:
            self.unsupported("call")
        made.setattr_(tr, "__orig_class__", self)
        return made

    def len_(self, tr: Tracer) -> Value:
        return fold(tr, len, (self.obj,))

    def getitem(self, tr: Tracer, key: Value) -> Value:
        return fold(tr, operator.getitem, (self.obj, key))

    def contains(self, tr: Tracer, item: Value) -> Value:
        return fold(tr, operator.contains, (self.obj, item.as_constant()))

    def iter_(self, tr: Tracer) -> Value:
        return tr.constant(tuple(self.obj)).iter_(tr)

    def unpack(self, tr: Tracer) -> list[Value]:
        return [tr.constant(item) for item in self.obj]

    def binary_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        return self._united(tr, op, other, lambda one: self.obj | one)

    def reflected_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        return self._united(tr, op, other, lambda one: one | self.obj)

    def _united(self, tr: Tracer, op: str, other: Value, unite: Callable[[Any], Any]) -> Value | None:
        """The union of two types, as in annotations, or None of other objects."""
        if op != "|" or not other.can_be_constant():
            return None
        try:
            return tr.constant(unite(other.as_constant()))
        except TypeError:
            return None

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if op not in ("==", "!=") or not other.can_be_constant():
            return None
        return tr.constant(bool(self.obj == other.as_constant()) == (op == "=="))


def fold_list(result: Any) -> Any:
    """Convert views and iterators of folded mappings to tuples."""
    return tuple(result) if isinstance(result, KeysView | ValuesView | ItemsView) else result


def fold_strings(tr: Tracer, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> Value:
    """Call a function of strings now, unless an argument is an object whose methods it would call."""
    for arg in (*args, *kwargs.values()):
        if not issubclass(arg.python_type(), (str, bytes, int, re.Pattern, type(None))):
            raise GraphBreak(UNSUPPORTED_CALL, f"{function.__qualname__} of {arg.describe()}")
    return fold(tr, function, args, kwargs)


@builds_type(*IMMUTABLE_C_TYPES, re.Match)
def build_folded(tr: Tracer, obj: Any) -> Value:
    """Return the value of a folded object."""
    return FoldedValue(obj)


@wraps_type(*IMMUTABLE_C_TYPES)
def wrap_folded_object(tr: Tracer, obj: Any, source: Source) -> Value:
    """Wrap an object found at a source, guarded by identity or by all attributes that identify it."""
    parts = IDENTIFYING.get(type(obj))
    if parts is None:
        tr.guard(source, "EQUALS_MATCH" if is_constant(obj) else "ID_MATCH", obj)
        return FoldedValue(obj, source=source)
    tr.guard(source, "TYPE_MATCH", type(obj))
    for part in parts:
        tr.guard(AttrSource(source, part), "EQUALS_MATCH", getattr(obj, part))
    return FoldedValue(obj, source=source)
