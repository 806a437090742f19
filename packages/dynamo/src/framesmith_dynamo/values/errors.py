"""Python's own error messages: where Python rejects an operation, Python itself is made to raise the error.

The operation runs on stand-ins: known objects of builtin types as they are, an empty object of a class of the same name
for all others. None of the program's code runs.
"""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from framesmith_dynamo.breaks import UNSUPPORTED_CALL, GraphBreak
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_guards.values.constants import FROZEN_DICTS, SINGLETON_TYPES

#: Builtin types whose objects are safe operands: they run no code but their own.
PLAIN: Final = (
    int,
    float,
    complex,
    bool,
    str,
    bytes,
    type(None),
    type(Ellipsis),
    type(NotImplemented),
    range,
    slice,
    types.BuiltinFunctionType,
    types.ModuleType,
    *SINGLETON_TYPES,
)
#: Builtin containers, whose stand-ins are empty: their items may be anything.
EMPTY: Final = (list, tuple, dict, set, frozenset, OrderedDict, defaultdict, deque, *FROZEN_DICTS)
#: Dicts, and their views, which exist with a dict only.
_MAPPINGS: Final[Sequence[dict[Any, Any]]] = ({}, OrderedDict())
VIEWS: Final[Mapping[type, Any]] = {
    type(view): view for mapping in _MAPPINGS for view in (mapping.keys(), mapping.values(), mapping.items())
}
#: Special methods that Python calls on the result of another one.
CONVERSIONS: Final = ("__index__", "__float__")


#: The required result types of conversions to numbers.
_NUMBERS_OF: Final = frozenset({("__int__", int), ("__index__", int), ("__float__", float), ("__len__", int)})


def refuse(tr: Tracer, function: Callable[..., Any], args: Sequence[Value], kwargs: Mapping[str, Value]) -> NoReturn:
    """Raise in the program the error of `function(*args, **kwargs)`. Breaks the graph if Python raises none."""
    try:
        function(*map(stand_in, args), **{name: stand_in(arg) for name, arg in kwargs.items()})
    except Exception as error:
        tr.raise_(type(error), *error.args)
    shown = ", ".join(arg.describe() for arg in (*args, *kwargs.values()))
    raise GraphBreak(UNSUPPORTED_CALL, f"{getattr(function, '__qualname__', function)}({shown})")


def refuse_positional(tr: Tracer, function: Callable[..., Any], *args: Value) -> NoReturn:
    """`refuse` for positional arguments."""
    refuse(tr, function, args, {})


def not_implemented_by(tr: Tracer, method: Callable[..., Any], *args: Value) -> Value:
    """Return the result of a builtin type's special method for arguments that it does not support: NotImplemented, or
    its error.

    Breaks the graph where the method would depend on the argument's own class, or return something else.
    """
    if isinstance(method, types.FunctionType):
        return tr.constant(NotImplemented)  # the class's own method, which has been interpreted
    if not any(_is_converted(arg) for arg in args[1:]):
        try:
            answer = method(*map(stand_in, args))
        except Exception as error:
            tr.raise_(type(error), *error.args)
        if answer is NotImplemented:
            return tr.constant(answer)
    raise GraphBreak(UNSUPPORTED_CALL, f"{method.__qualname__}({', '.join(arg.describe() for arg in args)})")


def _is_converted(value: Value) -> bool:
    """Whether C code may convert this object, of no builtin type, to a number."""
    cls = value.python_type()
    return cls not in PLAIN and any(type_lookup(cls, name) is not None for name in CONVERSIONS)


def refuse_store(tr: Tracer, cls: type, name: str, *, in_class: bool) -> NoReturn:
    """Raise the error of storing into an object without a dictionary; `in_class`: its class has the attribute."""
    entries = dict.fromkeys([name] if in_class else [])
    try:
        object.__setattr__(object.__new__(namesake(cls, (), entries | {"__slots__": ()})), name, None)
    except AttributeError as error:
        tr.raise_(AttributeError, *error.args)
    raise GraphBreak(UNSUPPORTED_CALL, f"setting {name!r} of a {cls.__qualname__} object")


def refuse_empty_slot(tr: Tracer, cls: type, name: str) -> NoReturn:
    """Raise the error of reading an empty slot."""
    try:
        getattr(object.__new__(namesake(cls, (), {"__slots__": (name,)})), name)
    except AttributeError as error:
        tr.raise_(AttributeError, *error.args)
    raise GraphBreak(UNSUPPORTED_CALL, f"{name!r} of a {cls.__qualname__} object")


@functools.cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def answered(tr: Tracer, function: Callable[..., Any], name: str, owner: Value, answer: Value) -> Value:
    """Check the result of `owner`'s own method `name`, called by `function` (`len`): some types are errors."""
    if answer.is_symbolic() and (name, answer.python_type()) in _NUMBERS_OF:
        if name != "__len__" or not _decide_negative(tr, answer):
            return answer
        answer = tr.constant(-1)  # each negative length has the same error
    known = answer.can_be_constant() and isinstance(answer.as_constant(), int | float | complex | str | bytes)
    given = answer.as_constant() if known else stand_in(answer)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = function(namesake(owner.python_type(), (), {name: lambda self: given})())
    except Warning as warning:
        raise GraphBreak(UNSUPPORTED_CALL, str(warning)) from None
    except Exception as error:
        if not known and any(type_lookup(answer.python_type(), other) is not None for other in CONVERSIONS):
            raise GraphBreak(UNSUPPORTED_CALL, f"{function.__name__} of {answer.describe()}") from None
        tr.raise_(type(error), *error.args)
    return answer if result is given else tr.constant(result)


def _decide_negative(tr: Tracer, number: Value) -> bool:
    """Whether a symbolic number is negative at this call; its sign is guarded from now on."""
    negative = number.compare(tr, "<", tr.constant(0))
    return negative is not None and negative.bool_(tr)


def refuse_key(tr: Tracer, key: Value, refusal: tuple[Any, ...], holder: type) -> NoReturn:
    """Raise the error of a key of a dict, or an element of a set, without hash: `refusal`, or one that quotes it."""

    def refuse_hash(self: object) -> int:
        raise TypeError(*refusal)

    try:
        made = namesake(key.python_type(), (), {"__hash__": refuse_hash})()
        frozenset([made]) if holder is set else dict.fromkeys([made])
    except TypeError as error:
        tr.raise_(TypeError, *error.args)
    raise AssertionError("an object without a hash")


def iterator(tr: Tracer, owner: Value, answer: Value) -> Value:
    """Check the result of `owner`'s own `__iter__`, which must be an iterator."""
    if type_lookup(answer.python_type(), "__next__") is None:
        answered(tr, iter, "__iter__", owner, answer)
    return answer


def takes(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> bool:
    """Whether a Python function can be called with these arguments."""
    try:
        _signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def stand_in(value: Value) -> Any:
    """Return an object for which Python raises the same error as for the one that a value represents."""
    cls = value.python_type()
    if value.can_be_constant() and cls in PLAIN:
        return value.as_constant()
    if value.can_be_constant() and cls is type:
        return namesake(value.as_constant())
    if cls in EMPTY:
        return cls()
    if cls in VIEWS:
        return VIEWS[cls]
    if cls is types.FunctionType:
        return lambda *args, **kwargs: None
    if issubclass(cls, tuple):
        return namesake(cls, (tuple,))()
    return namesake(cls)()


def namesake(cls: type, bases: tuple[type, ...] = (), entries: Mapping[str, Any] = {}) -> type:
    """Return a new class with the name of another one in Python's messages."""
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls.__name__, bases, {**names, **entries})
