"""Exception groups made in the trace: their fields, `split` and `subgroup`, and the two steps of `except*`.

PEP 654; the methods are those of CPython's `BaseExceptionGroup`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from framesmith_dynamo.breaks import UNSUPPORTED_CALL, GraphBreak, register_break
from framesmith_dynamo.values.base import Args, Found, Kwargs, Tracer, Value
from framesmith_dynamo.values.c_methods import c_method
from framesmith_dynamo.values.callables import one
from framesmith_dynamo.values.containers import new_list
from framesmith_dynamo.values.containers.tuple import TupleValue
from framesmith_dynamo.values.errors import stand_in
from framesmith_dynamo.values.objects.exceptions import ExceptionValue, notes_of

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen

FOUND_GROUP = register_break(
    "found-exception-group",
    what="an exception that exists before the trace is split, as `except*` does",
    why="its parts, its notes and its traceback are not known to the trace",
    hint="raise the exceptions that `except*` handles inside the compiled function, or handle them outside of it",
)

#: The attributes that a part of a group shares with it, beside the traceback and a copy of the notes.
_COPIED: Final = ("__context__", "__cause__", "__suppress_context__")
#: Whether an exception is one of those looked for.
Matcher = Callable[[Value], bool]


class ExceptionGroupValue(ExceptionValue):
    """A group made in the trace, with its `message` and `exceptions`."""

    __slots__ = ("exceptions", "message")

    def __init__(self, cls: type[BaseException], args: Sequence[Value], exceptions: Sequence[Value]) -> None:
        super().__init__(cls, args)
        self.message = args[0]
        self.exceptions = TupleValue(exceptions)

    def read_c_data(self, tr: Tracer, found: Found, name: str) -> Value:
        if name == "exceptions":
            return self.exceptions
        if name == "message":
            return self.message
        return super().read_c_data(tr, found, name)

    def members(self) -> Sequence[Value]:
        """The exceptions of the group."""
        return self.exceptions.items

    def referents(self) -> Iterable[Value]:
        return (*super().referents(), self.message, self.exceptions)

    def reconstruct(self, codegen: Codegen) -> None:
        if self.caught:
            raise NotImplementedError(f"{self.describe()} was raised, and has a traceback")
        codegen.push_function(build_group)
        codegen.load_const(self.cls)
        codegen(self.message)
        codegen(self.exceptions)
        for value in self.args:
            codegen(value)
        codegen.build("tuple", len(self.args))
        codegen.call(4)


def build_group(cls: Any, message: str, exceptions: tuple[BaseException, ...], args: tuple[Any, ...]) -> Any:
    """Called by compiled code: return a group made by its C class, without running the program's code again."""
    made = BaseExceptionGroup.__new__(cls, message, exceptions)
    made.args = args
    return made


@c_method("__new__", BaseExceptionGroup)
def _new(tr: Tracer, cls: Any, args: Args, kwargs: Kwargs) -> Value:
    items = _sequence(tr, args[1]) if len(args) == 2 and not kwargs else None
    given: list[Any] = [_bare(arg) for arg in args] if items is None else [_bare(args[0]), [*map(_bare, items)]]
    try:
        real: BaseException = BaseExceptionGroup.__new__(cls, *given, **kwargs)
    except Exception as error:
        tr.raise_(type(error), *error.args)
    if items is None:
        raise GraphBreak(UNSUPPORTED_CALL, f"{cls.__qualname__}({', '.join(arg.describe() for arg in args)})")
    made = ExceptionGroupValue(type(real), args, items)
    made.track(tr)
    return made


def _sequence(tr: Tracer, value: Value) -> list[Value] | None:
    """Return the items of a list or tuple; None of other objects."""
    return value.unpack(tr) if issubclass(value.python_type(), list | tuple) else None


def _bare(value: Value) -> Any:
    """Return an object for which the constructor of groups gives the same answer."""
    cls = value.python_type()
    if issubclass(cls, BaseException):
        return Exception() if issubclass(cls, Exception) else BaseException()
    return "" if cls is str else stand_in(value)


@c_method("__str__", BaseExceptionGroup)
def _str(tr: Tracer, self: ExceptionGroupValue, args: Args, kwargs: Kwargs) -> Value:
    return tr.constant(BaseExceptionGroup.__str__(self.as_plain()))


@c_method("derive", BaseExceptionGroup)
def _derive(tr: Tracer, self: ExceptionGroupValue, args: Args, kwargs: Kwargs) -> Value:
    return _new_group(tr, self.message, one(tr, _ANY.derive, args, kwargs))


@c_method("split", BaseExceptionGroup)
def _split(tr: Tracer, self: ExceptionGroupValue, args: Args, kwargs: Kwargs) -> Value:
    return TupleValue(parts(tr, self, _matcher(tr, _ANY.split, args, kwargs)))


@c_method("subgroup", BaseExceptionGroup)
def _subgroup(tr: Tracer, self: ExceptionGroupValue, args: Args, kwargs: Kwargs) -> Value:
    return parts(tr, self, _matcher(tr, _ANY.subgroup, args, kwargs), wants_rest=False)[0]


#: A group whose methods say what is wrong with their arguments.
_ANY: Any = BaseExceptionGroup("", [ValueError()])


def _new_group(tr: Tracer, message: Value, exceptions: Value) -> Value:
    """`BaseExceptionGroup(message, exceptions)`"""
    return tr.call(tr.constant(BaseExceptionGroup), (message, exceptions), {})


def _matcher(tr: Tracer, method: Callable[..., Any], args: Args, kwargs: Kwargs) -> Matcher:
    """Return the matcher that an argument of `split` denotes: a class, a tuple of classes, or a function."""
    wanted = one(tr, method, args, kwargs)
    classes = wanted.unpack(tr) if issubclass(wanted.python_type(), tuple) else [wanted]
    if all(issubclass(one.python_type(), type) and issubclass(one.as_constant(), BaseException) for one in classes):
        return by_classes(tr, wanted)
    if len(classes) != 1 or classes[0] is not wanted or issubclass(wanted.python_type(), type):
        _refuse(tr, method, [_real(cls) for cls in classes])
    if not callable(stand_in(wanted)):
        _refuse(tr, method, [stand_in(wanted)])
    return lambda error: tr.call(wanted, (error,), {}).bool_(tr)


def _real(cls: Value) -> Any:
    return cls.as_constant() if issubclass(cls.python_type(), type) else stand_in(cls)


def _refuse(tr: Tracer, method: Callable[..., Any], wanted: list[Any]) -> None:
    """Raise the method's error for what cannot be a matcher."""
    try:
        method(wanted[0] if len(wanted) == 1 else tuple(wanted))
    except TypeError as error:
        tr.raise_(TypeError, *error.args)
    raise GraphBreak(UNSUPPORTED_CALL, f"{method.__name__} of an exception group")


def by_classes(tr: Tracer, wanted: Value) -> Matcher:
    """Return the matcher of exceptions of a class, or of one in a tuple."""
    classes = wanted.unpack(tr) if issubclass(wanted.python_type(), tuple) else [wanted]
    known: tuple[type, ...] = tuple(cls.as_constant() for cls in classes)
    return lambda error: issubclass(error.python_type(), known)


def parts(tr: Tracer, error: Value, matches: Matcher, *, wants_rest: bool = True) -> tuple[Value, Value]:
    """Return the part of an exception that matches and the rest; None as a value for an empty part."""
    nothing = tr.constant(None)
    if matches(error):
        return error, nothing
    if not issubclass(error.python_type(), BaseExceptionGroup):
        return nothing, error if wants_rest else nothing
    group = as_group(error)
    found = [parts(tr, member, matches, wants_rest=wants_rest) for member in group.members()]
    matched, rest = ([part for part in side if not part.is_none()] for side in zip(*found, strict=True))
    return _subset(tr, group, matched), _subset(tr, group, rest) if wants_rest else nothing


def as_group(error: Value) -> ExceptionGroupValue:
    """Return a group that the trace has made; breaks for others."""
    if not isinstance(error, ExceptionGroupValue):
        raise GraphBreak(FOUND_GROUP, error.describe())
    return error


def _subset(tr: Tracer, group: ExceptionGroupValue, exceptions: Sequence[Value]) -> Value:
    """Return a group like another one, of some of its exceptions; None as a value if there are none."""
    if not exceptions:
        return tr.constant(None)
    made = group.call_method(tr, "derive", (new_list(tr, exceptions),), {})
    if not isinstance(made, ExceptionGroupValue):
        if issubclass(made.python_type(), BaseExceptionGroup):
            raise GraphBreak(FOUND_GROUP, made.describe())
        tr.raise_(TypeError, "derive must return an instance of BaseExceptionGroup")
    made.traceback, made.caught = group.traceback, group.caught
    for name in _COPIED:
        stored = tr.journal.stored_attr(group, name)
        if stored is not None:
            made.store_own(tr, name, stored)
    notes = notes_of(tr, group)
    if notes is not None and issubclass(notes.python_type(), list | tuple):
        made.setattr_(tr, "__notes__", new_list(tr, notes.unpack(tr)))
    return made


# The two steps of `except*`


def match_group(tr: Tracer, error: Value, wanted: Value) -> tuple[Value, Value]:
    """Return (match, rest) for one `except*` clause."""
    nothing = tr.constant(None)
    is_group = issubclass(error.python_type(), BaseExceptionGroup)
    if by_classes(tr, wanted)(error):
        if is_group:
            return error, nothing
        match = _new_group(tr, tr.constant(""), TupleValue([error]))
        _note_traceback(match)
        return match, nothing
    if not is_group:
        return nothing, error
    pair = error.call_method(tr, "split", (wanted,), {})
    if not issubclass(pair.python_type(), tuple) or len(found := pair.unpack(tr)) < 2:
        raise GraphBreak(UNSUPPORTED_CALL, f"split() of {error.describe()} returns no pair")
    return found[0], error if found[0].is_none() else found[1]


def _note_traceback(error: Value) -> None:
    if isinstance(error, ExceptionValue):
        error.traceback = object()
        error.caught = True


def raised_again(tr: Tracer, original: Value, exceptions: Sequence[Value]) -> Value:
    """Return the exception that a `try` with `except*` raises at its end; None as a value if there is none.

    `exceptions`: those that clauses have raised, and the rest.
    """
    if not exceptions:
        return tr.constant(None)
    if not issubclass(original.python_type(), BaseExceptionGroup):
        return exceptions[0]  # it was wrapped, and one clause has handled it
    group = as_group(original)
    raised: list[Value] = []
    again: set[int] = set()
    for error in exceptions:
        if error.is_none():
            continue
        if _is_part(tr, error, group):
            again |= _leaves(error)
        else:
            raised.append(error)
    unhandled, _ = parts(tr, group, lambda error: id(error) in again, wants_rest=False)
    if not raised:
        return unhandled
    if not unhandled.is_none():
        raised.append(unhandled)
    return raised[0] if len(raised) == 1 else _new_group(tr, tr.constant(""), new_list(tr, raised))


def _is_part(tr: Tracer, error: Value, group: ExceptionGroupValue) -> bool:
    """Whether an exception is a part of the group, by what `split` copies: no `raise` has named it."""
    if not isinstance(error, ExceptionGroupValue) or error.traceback is not group.traceback:
        return False
    sides = (tr.journal.stored_attr(error, name) is tr.journal.stored_attr(group, name) for name in _COPIED)
    return all(sides)


def _leaves(error: Value) -> set[int]:
    """Return the identities of the exceptions in a group that are no groups."""
    if not issubclass(error.python_type(), BaseExceptionGroup):
        return {id(error)}
    return set().union(*map(_leaves, as_group(error).members()))
