"""Type parameters and type aliases that the traced code makes (PEP 695, 696): objects of C code with lazy parts.

Residual code makes the real ones by the same instructions of the interpreter.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.constants.lazy_types import EVALUATED, LAZY_TYPE, TYPE_ALIASES, why_not_evaluated
from framesmith_dynamo.values.errors import refuse_positional
from framesmith_dynamo.values.wrap_registry import wraps_type
from framesmith_guards import AttrSource

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source

#: The instruction that makes a parameter: its class, and the attribute that is evaluated when it is read.
MAKERS: Final = {
    "TYPEVAR": ("TypeVar", None),
    "TYPEVAR_WITH_BOUND": ("TypeVar", "__bound__"),
    "TYPEVAR_WITH_CONSTRAINTS": ("TypeVar", "__constraints__"),
    "PARAMSPEC": ("ParamSpec", None),
    "TYPEVARTUPLE": ("TypeVarTuple", None),
}
#: Attributes of every type parameter that depend on its name only, unless it has a lazy part of that name.
PLAIN: Final = (
    "__name__", "__covariant__", "__contravariant__", "__infer_variance__", "__bound__", "__constraints__",
    "__default__",
)  # fmt: skip


class MadeType(Value):
    """An object that an instruction of the interpreter makes of a name and functions for its lazy parts."""

    exact_operators = True
    __slots__ = ("name",)

    def __init__(self, name: Value) -> None:
        super().__init__()
        self.name = name

    def describe(self) -> str:
        return f"the {self.python_type().__name__} {self.name.as_constant()}"

    def bool_(self, tr: Tracer) -> bool:
        return True

    def hash_key(self, tr: Tracer) -> object:
        return self

    def binary_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        self.unsupported(op)

    def reflected_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        self.unsupported(op)

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "__class__":
            return tr.constant(self.python_type())
        if not hasattr(self.python_type(), name):
            refuse_positional(tr, getattr, self, tr.constant(name))
        return super().getattr_(tr, name)


@functools.cache
def _made_by_syntax(cls: type) -> Any:
    """Return the type parameter that `def f[...]` makes, which is not quite what a call of the class makes."""
    star = {"TypeVarTuple": "*", "ParamSpec": "**"}.get(cls.__name__, "")
    names: dict[str, Any] = {}
    exec(f"def f[{star}T](): pass", names)
    return names["f"].__type_params__[0]


class TypeParameterValue(MadeType):
    """A type parameter: the instruction that makes it, its name, and the function of its bound or constraints."""

    __slots__ = ("default", "evaluate", "maker")

    def __init__(self, maker: str, name: Value, evaluate: Value | None = None) -> None:
        super().__init__(name)
        self.maker = maker
        self.evaluate = evaluate
        self.default: Value | None = None

    def python_type(self) -> type:
        found: type = getattr(typing, MAKERS[self.maker][0])
        return found

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == MAKERS[self.maker][1] or (name == "__default__" and self.default is not None):
            raise GraphBreak(LAZY_TYPE, f"{name!r} of {self.describe()}")
        if name == "__name__":
            return self.name
        if name in PLAIN and hasattr(self.python_type(), name):
            return tr.constant(getattr(self._like(), name))
        return super().getattr_(tr, name)

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Any) -> Value:
        if name == "has_default" and not args and not kwargs:
            return tr.constant(self.default is not None)
        return super().call_method(tr, name, args, kwargs)

    def _like(self) -> Any:
        """Return a type parameter that Python's own syntax makes, without lazy parts; only its name is another."""
        return _made_by_syntax(self.python_type())

    def referents(self) -> Iterable[Value]:
        return [part for part in (self.name, self.evaluate, self.default) if part is not None]

    def reconstruct(self, codegen: Codegen) -> None:
        codegen(self.name)
        if self.evaluate is None:
            codegen.emit("CALL_INTRINSIC_1", self.maker)
        else:
            codegen(self.evaluate)
            codegen.emit("CALL_INTRINSIC_2", self.maker)
        if self.default is not None:
            codegen(self.default)
            codegen.emit("CALL_INTRINSIC_2", "SET_TYPEPARAM_DEFAULT")


class TypeAliasValue(MadeType):
    """A type alias: its name, its parameters (a tuple, or None) and the function of its value."""

    __slots__ = ("evaluate", "parameters")

    def __init__(self, name: Value, parameters: Value, evaluate: Value) -> None:
        super().__init__(name)
        self.parameters = parameters
        self.evaluate = evaluate

    def python_type(self) -> type:
        found: type = typing.TypeAliasType  # type: ignore[attr-defined]
        return found

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "__name__":
            return self.name
        if name == "__type_params__":
            return tr.constant(()) if self.parameters.is_none() else self.parameters
        if name == "__value__":
            raise GraphBreak(LAZY_TYPE, f"{name!r} of {self.describe()}")
        return super().getattr_(tr, name)

    def referents(self) -> Iterable[Value]:
        return (self.name, self.parameters, self.evaluate)

    def reconstruct(self, codegen: Codegen) -> None:
        for part in self.referents():
            codegen(part)
        codegen.build("tuple", 3)
        codegen.emit("CALL_INTRINSIC_1", "TYPEALIAS")


class FoundAliasValue(Value):
    """An existing type alias, known by the code of its value's function."""

    python_types = TYPE_ALIASES
    exact_operators = True
    __slots__ = ("obj", "where")

    def __init__(self, obj: Any, source: Source) -> None:
        super().__init__(source=source)
        self.obj = obj
        self.where = source

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "__class__":
            return tr.constant(type(self.obj))
        if name not in ("__name__", "__type_params__", "__value__"):
            return super().getattr_(tr, name)
        if why := why_not_evaluated(tr, self.obj, name):
            raise GraphBreak(LAZY_TYPE, f"{name!r} of {self.obj!r}: {why}")
        return tr.wrap(getattr(self.obj, name), AttrSource(self.where, name))

    def bool_(self, tr: Tracer) -> bool:
        return True


@wraps_type(*TYPE_ALIASES)
def wrap_alias(tr: Tracer, obj: Any, source: Source) -> Value:
    """Wrap a type alias found at a source. It has no weak references; breaks where it does not show its function."""
    evaluate = getattr(obj, EVALUATED["__value__"], None)
    if not isinstance(evaluate, FunctionType):
        raise GraphBreak(LAZY_TYPE, f"the alias {obj!r} does not say how it is evaluated")
    tr.guard(source, "TYPE_MATCH", type(obj))
    tr.guard(AttrSource(source, EVALUATED["__value__"]), "FUNCTION_CODE", evaluate.__code__)
    return FoundAliasValue(obj, source)


def new_parameter(tr: Tracer, maker: str, name: Value, evaluate: Value | None = None) -> Value:
    """Return a new type parameter, made by the instruction of this name."""
    made = TypeParameterValue(maker, name, evaluate)
    tr.journal.track_new(made)
    return made


def new_alias(tr: Tracer, name: Value, parameters: Value, evaluate: Value) -> Value:
    """Return a new type alias."""
    made = TypeAliasValue(name, parameters, evaluate)
    tr.journal.track_new(made)
    return made
