"""Exceptions as values: made in the trace by `raise` and by the tracer's own errors."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Sequence
from types import MemberDescriptorType, TracebackType
from typing import TYPE_CHECKING, Any

from framesmith_dynamo.breaks import UNSUPPORTED_CALL, GraphBreak, register_break
from framesmith_dynamo.values.base import Args, Found, Kwargs, TracedRaise, Tracer, Value
from framesmith_dynamo.values.c_methods import C_METHODS, c_method
from framesmith_dynamo.values.callables import between, handles
from framesmith_dynamo.values.constants.constant import plain
from framesmith_dynamo.values.containers import new_list
from framesmith_dynamo.values.containers.tuple import TupleValue
from framesmith_dynamo.values.errors import refuse
from framesmith_dynamo.values.objects.objects import ObjectValue
from framesmith_guards.values.classes import IMMUTABLE_TYPE

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen

#: Attributes stored by C code that a trace may set.
SLOTS = ("__cause__", "__context__", "__suppress_context__", "__traceback__")
_INITIAL = {"__cause__": None, "__context__": None, "__suppress_context__": False, "__traceback__": None}

TRACEBACK = register_break(
    "exception-traceback",
    what="the traceback of an exception is read that was raised and caught in the trace",
    why="no frame ran while tracing, so there is none",
    hint="format tracebacks outside the compiled function",
)
C_FIELD = register_break(
    "exception-field",
    what="a field of an exception is read that C code sets",
    why="it may be set when the exception is raised (`name` of an AttributeError), and no C code raised it",
    hint="read the exception's args, or use values known where you catch it",
)


class ExceptionValue(ObjectValue):
    """An exception made in the trace. `args` is `exc.args`; `caught`: it was raised and handled.

    `given` are the arguments of the C class's `__init__`, which fills its own fields from them. `traceback` stands for
    the traceback object, of which only the identity is known; None: there is none yet.
    """

    __slots__ = ("args", "caught", "given", "traceback")

    def __init__(self, cls: type[BaseException], args: Sequence[Value] = ()) -> None:
        super().__init__(cls)
        self.args = self.given = tuple(args)
        self.caught = False
        self.traceback: object = None

    @staticmethod
    def new(tr: Tracer, cls: type[BaseException], args: Sequence[Value] = ()) -> ExceptionValue:
        """Return `cls.__new__(cls, *args)`, tracked so that attributes can be stored."""
        value = ExceptionValue(cls, args)
        value.track(tr)
        return value

    def describe(self) -> str:
        return f"{self.cls.__name__}({', '.join(arg.describe() for arg in self.args)})"

    def read_c_data(self, tr: Tracer, found: Found, name: str) -> Value:
        pending = tr.journal.stored_attr(self, name)
        if pending is not None:
            return pending
        if name == "args":
            return TupleValue(self.args)
        if name == "__traceback__" and self.caught:
            if tr.globals is vars(contextlib):  # which passes it on to the exits of blocks
                return TracebackValue()
            raise GraphBreak(TRACEBACK, self.describe())
        if name in _INITIAL:
            return tr.constant(_INITIAL[name])
        if name == "value" and issubclass(self.cls, StopIteration):
            return self.given[0] if self.given else tr.constant(None)
        if name == "code" and issubclass(self.cls, SystemExit):
            return TupleValue(self.given) if len(self.given) > 1 else (*self.given, tr.constant(None))[0]
        if isinstance(found.raw, MemberDescriptorType) and found.owner.__flags__ & IMMUTABLE_TYPE:
            raise GraphBreak(C_FIELD, f"{name!r} of {self.describe()}")
        return super().read_c_data(tr, found, name)

    def generic_setattr(self, tr: Tracer, name: str, value: Value) -> None:
        if name == "args":
            self.args = tuple(value.unpack(tr))
        elif name in SLOTS:
            self.store_own(tr, name, value)
            if name == "__cause__":
                self.store_own(tr, "__suppress_context__", tr.constant(True))
        else:
            super().generic_setattr(tr, name, value)

    def call_c_method(self, tr: Tracer, found: Found, name: str, args: Args, kwargs: Kwargs) -> Value:
        """Builtin exceptions repeat the methods of BaseException in their own dictionaries."""
        if found.owner is not object and (found.owner, name) not in C_METHODS and (BaseException, name) in C_METHODS:
            found = Found(BaseException, found.raw)
        return super().call_c_method(tr, found, name, args, kwargs)

    def as_plain(self) -> Any:
        """A real exception with the same arguments, for pure functions such as `str`."""
        return build_exception(self.cls, *(tuple(map(plain, values)) for values in (self.args, self.given)))

    def referents(self) -> Iterable[Value]:
        return (*self.args, *self.given)

    def chain(self, tr: Tracer, handled: Value | None) -> None:
        """Set the exception being handled as the context, without making a cycle.

        A cycle made by the program is walked once.
        """
        if handled is None or handled is self:
            return
        inner: Value = handled
        met: set[Value] = set()
        while isinstance(inner, ExceptionValue) and inner not in met:
            met.add(inner)
            context = inner.read_context(tr)
            if context is self:
                inner.store_own(tr, "__context__", tr.constant(None))
                break
            inner = context
        self.store_own(tr, "__context__", handled)

    def read_context(self, tr: Tracer) -> Value:
        """Read `__context__`, bypassing the class."""
        pending = tr.journal.stored_attr(self, "__context__")
        return tr.constant(None) if pending is None else pending

    def reconstruct(self, codegen: Codegen) -> None:
        if self.caught:
            raise NotImplementedError(f"{self.describe()} was raised, and has a traceback")
        codegen.push_function(build_exception)
        codegen.load_const(self.cls)
        for values in (self.args, self.given):
            for value in values:
                codegen(value)
            codegen.build("tuple", len(values))
        codegen.call(3)


def build_exception(cls: type[BaseException], args: tuple[Any, ...], given: tuple[Any, ...]) -> BaseException:
    """Called by compiled code: return an exception made by its C class, without running the program's code again."""
    base = next(base for base in cls.__mro__ if base.__flags__ & IMMUTABLE_TYPE)
    made: BaseException = base.__new__(cls, *args)
    base.__init__(made, *given)  # type: ignore[misc]
    made.args = args
    return made


@c_method("__init__", BaseException)
def _init(tr: Tracer, self: ExceptionValue, args: Args, kwargs: Kwargs) -> Value:
    if kwargs:
        raise GraphBreak(UNSUPPORTED_CALL, f"{self.cls.__qualname__}() with {', '.join(kwargs)}")
    self.args = self.given = tuple(args)
    return tr.constant(None)


@c_method("with_traceback", BaseException)
def _with_traceback(tr: Tracer, self: ExceptionValue, args: Args, kwargs: Kwargs) -> Value:
    return self


@c_method("add_note", BaseException)
def _add_note(tr: Tracer, self: ExceptionValue, args: Args, kwargs: Kwargs) -> Value:
    if kwargs or len(args) != 1 or not issubclass(args[0].python_type(), str):
        refuse(tr, BaseException().add_note, args, kwargs)
    notes = notes_of(tr, self)
    if notes is None:
        self.setattr_(tr, "__notes__", new_list(tr, args))
    elif issubclass(notes.python_type(), list):
        notes.call_method(tr, "append", args, {})
    else:
        tr.raise_(TypeError, "Cannot add note: __notes__ is not a list")
    return tr.constant(None)


def notes_of(tr: Tracer, error: Value) -> Value | None:
    """Return the notes of an exception, or None if it has none."""
    try:
        return error.getattr_(tr, "__notes__")
    except TracedRaise as raised:
        if raised.value.python_type() is not AttributeError:
            raise
        return None


@c_method("__str__", BaseException)
def _str(tr: Tracer, self: ExceptionValue, args: Args, kwargs: Kwargs) -> Value:
    if not self.args:
        return tr.constant("")
    shown: Value = self.args[0] if len(self.args) == 1 else TupleValue(self.args)
    return tr.call(tr.constant(str), (shown,), {})


@c_method("__new__", BaseException)
def _new(tr: Tracer, cls: type, args: Args, kwargs: Kwargs) -> Value:
    if (
        issubclass(cls, OSError) and len(args) > 1
    ):  # the number chooses another class, and not all arguments become `args`
        raise GraphBreak(UNSUPPORTED_CALL, f"{cls.__qualname__}() with an error's number")
    made = ExceptionValue.new(tr, cls, args)
    made.given = ()
    return made


class TracebackValue(Value):
    """The traceback of a traced exception: it exists, and nothing else is known about it."""

    python_types = (TracebackType,)
    __slots__ = ()


@handles(sys.exc_info)
def exc_info(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    between(tr, sys.exc_info, args, kwargs, 0, 0)
    error = tr.exception_now()
    if error is None:
        return TupleValue([tr.constant(None)] * 3)
    return TupleValue([tr.constant(error.python_type()), error, TracebackValue()])


@handles(sys.exception)
def exception(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    between(tr, sys.exception, args, kwargs, 0, 0)
    return tr.exception_now() or tr.constant(None)
