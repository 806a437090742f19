"""A generator of the traced program: an interpreted frame suspended between two values."""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import GeneratorType
from typing import TYPE_CHECKING, Final, NoReturn

from framesmith_bytecode import ITERATOR_SLOTS
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values.base import Args, Kwargs, TracedRaise, Tracer, Value
from framesmith_dynamo.values.bound_method import BuiltinMethodValue
from framesmith_dynamo.values.errors import refuse, takes
from framesmith_dynamo.values.iteration.iterators import IteratorValue
from framesmith_dynamo.values.lookup.static import type_lookup

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_dynamo.interpreter.frame import Frame

LIVE_GENERATOR = register_break(
    "live-generator",
    what="a generator made in the trace is needed as an object afterwards",
    why="a suspended frame cannot be reconstructed",
    hint="exhaust it inside the compiled function, or make a list of it",
)


class GeneratorValue(IteratorValue):
    """A generator, whose frame runs on demand, one value at a time.

    `path`: the path by which it was reachable when that was last checked (see `abandoned`).
    """

    python_types = (GeneratorType,)
    __slots__ = ("frame", "path", "running", "started")

    def __init__(self, frame: Frame) -> None:
        super().__init__()
        self.frame: Frame | None = frame
        self.started = False
        self.running = False
        self.path: list[Value] = []

    def next_(self, tr: Tracer) -> Value:
        return self.send(tr, tr.constant(None))

    def call_method(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        method = METHODS.get(name)
        if method is None:
            self.unsupported(f"method {name!r}")
        if kwargs or not takes(method, self, tr, *args):
            refuse(tr, lambda *given, **named: getattr((_ for _ in ()), name)(*given, **named), args, kwargs)
        return method(self, tr, *args)

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name in METHODS:
            return BuiltinMethodValue(self, name)
        return super().getattr_(tr, name)

    # Running

    def send(self, tr: Tracer, value: Value) -> Value:
        """Resume with `value` as the result of the `yield`; return the next value yielded."""
        frame = self._ready(tr)
        if frame is None:
            tr.raise_(StopIteration)
        if not self.started and not value.is_none():
            tr.raise_(TypeError, "can't send non-None value to a just-started generator")
        frame.push(value)
        return self._resume(tr, frame)

    def throw(self, tr: Tracer, kind: Value, *rest: Value) -> Value:
        """Resume by raising an exception at the `yield`. The delegate of `yield from` gets the arguments unchanged."""
        frame = self._ready(tr)
        receiver = _delegate(frame) if frame is not None and self.started else None
        if frame is not None and receiver is not None:
            if _is_exit(kind):
                return self._resume(tr, frame, self._close_delegate(tr, receiver) or _exception_of(tr, kind, *rest))
            if _has_method(receiver, "throw"):
                return self._throw_into(tr, frame, receiver, (kind, *rest))
        error = _exception_of(tr, kind, *rest)
        if frame is None or not self.started:
            self.frame = None
            raise TracedRaise(error)
        return self._resume(tr, frame, error)

    def _close_delegate(self, tr: Tracer, receiver: Value) -> Value | None:
        """Close the delegate of `yield from`; return the exception that it raises, to be raised here."""
        if not _has_method(receiver, "close"):
            return None
        try:
            self.running = True
            receiver.call_method(tr, "close", (), {})
        except TracedRaise as raised:
            return raised.value
        finally:
            self.running = False
        return None

    def _throw_into(self, tr: Tracer, frame: Frame, receiver: Value, thrown: Args) -> Value:
        try:
            return receiver.call_method(tr, "throw", thrown, {})
        except TracedRaise as raised:
            if not issubclass(raised.value.python_type(), StopIteration):
                return self._resume(tr, frame, raised.value)
            frame.push(raised.value.getattr_(tr, "value"))
            frame.jump(frame.code.instrs[frame.pc - 2].arg)
            return self._resume(tr, frame)

    def close(self, tr: Tracer) -> Value:
        """Raise GeneratorExit inside; the generator must not yield again."""
        if self.frame is None or not self.started:
            self.frame = None
            return tr.constant(None)
        try:
            tr.raise_(GeneratorExit)
        except TracedRaise as made:
            exit_value = made.value
        try:
            self.throw(tr, exit_value)
        except TracedRaise as error:
            if issubclass(error.value.python_type(), GeneratorExit):
                return tr.constant(None)
            if issubclass(error.value.python_type(), StopIteration):
                return error.value.getattr_(tr, "value") if CLOSE_GIVES_RESULT else tr.constant(None)
            raise
        return tr.raise_(RuntimeError, "generator ignored GeneratorExit")

    def _ready(self, tr: Tracer) -> Frame | None:
        if self.running:
            tr.raise_(ValueError, "generator already executing")
        return self.frame

    def _resume(self, tr: Tracer, frame: Frame, error: Value | None = None) -> Value:
        """Run the frame to its next `yield`; its end is the program's StopIteration."""
        state = frame.state
        outside = state.handled
        state.handled = frame.handled if frame.handled is not None else outside
        self.started = self.running = True
        frame.stop = frame.is_suspended = False
        try:
            result = state.run(frame, error)
        except TracedRaise as raised:
            self.frame = None
            self._no_stop_iteration(tr, raised)
        except BaseException:
            self.frame = None
            raise
        finally:
            self.running = False
            frame.handled = state.handled if state.handled is not outside else None
            state.handled = outside
            if self in state.suspended_generators:
                state.suspended_generators.remove(self)
        if frame.is_suspended:
            if has_cleanup(frame):
                state.suspended_generators.append(self)
            return result
        self.frame = None
        finished_with = () if result.is_none() else (result,)
        return tr.raise_(StopIteration, *finished_with)

    def _no_stop_iteration(self, tr: Tracer, raised: TracedRaise) -> NoReturn:
        """PEP 479. From CPython 3.12 on the body's own instructions implement it."""
        if issubclass(raised.value.python_type(), StopIteration):
            raise TracedRaise(stop_iteration_error(tr, raised.value))
        try:
            raise raised
        finally:
            del raised  # its traceback holds this frame, and all callers

    # Back to bytecode

    def reconstruct(self, codegen: Codegen) -> None:
        raise GraphBreak(LIVE_GENERATOR, self.describe())


def stop_iteration_error(tr: Tracer, raised: Value) -> Value:
    """Return the RuntimeError for a StopIteration raised by a generator's body."""
    error = tr.call(tr.constant(RuntimeError), (tr.constant("generator raised StopIteration"),), {})
    for name in ("__cause__", "__context__"):
        error.setattr_(tr, name, raised)
    return error


def _returns_when_closed() -> Generator[None, None, bool]:
    try:
        yield
    except GeneratorExit:
        return True
    return False


def _close_gives_result() -> bool:
    """Ask Python whether `close()` returns the generator's result, as from CPython 3.13 on."""
    generator = _returns_when_closed()
    next(generator)
    result: object = generator.close()  # type: ignore[func-returns-value]
    return result is True


CLOSE_GIVES_RESULT: Final = _close_gives_result()


def _is_exit(kind: Value) -> bool:
    """Whether the thrown exception closes the generator."""
    raised = kind.as_constant() if issubclass(kind.python_type(), type) else kind.python_type()
    return issubclass(raised, GeneratorExit)


def _exception_of(tr: Tracer, kind: Value, given: Value | None = None, *traceback: Value) -> Value:
    """Return the exception of `throw(kind, given)`: `given` itself if it is one, else a new instance of the class."""
    with_value = given is not None and not given.is_none()
    if issubclass(kind.python_type(), BaseException):
        if with_value:
            tr.raise_(TypeError, "instance exception may not have a separate value")
        return kind
    if not issubclass(kind.python_type(), type) or not issubclass(kind.as_constant(), BaseException):
        not_one = f"not {kind.python_type().__name__}"
        tr.raise_(TypeError, f"exceptions must be classes or instances deriving from BaseException, {not_one}")
    if given is None or not with_value:
        return tr.call(kind, (), {})
    if issubclass(given.python_type(), kind.as_constant()):
        return given
    return tr.call(kind, given.unpack(tr) if issubclass(given.python_type(), tuple) else (given,), {})


def _delegate(frame: Frame) -> Value | None:
    """Return the iterator of the `yield from` at which a frame is suspended, or None."""
    if frame.pc >= 2 and frame.code.instrs[frame.pc - 2].op == "SEND":
        return frame.peek(ITERATOR_SLOTS)
    return None


def _has_method(receiver: Value, name: str) -> bool:
    return isinstance(receiver, GeneratorValue) or type_lookup(receiver.python_type(), name) is not None


def has_cleanup(frame: Frame) -> bool:
    """Whether closing a frame suspended at a `yield` runs code: a block around it, or a delegate's."""
    delegate = _delegate(frame)
    if delegate is not None and not isinstance(delegate, GeneratorValue) and _has_method(delegate, "close"):
        return True
    protection = frame.code.protections[frame.pc - 1]
    return protection is not None and frame.code.instrs[protection.target].arg != "STOPITERATION_ERROR"


METHODS: dict[str, Callable[..., Value]] = {
    "send": GeneratorValue.send,
    "throw": GeneratorValue.throw,
    "close": GeneratorValue.close,
    "__next__": GeneratorValue.next_,
    "__iter__": GeneratorValue.iter_,
}
