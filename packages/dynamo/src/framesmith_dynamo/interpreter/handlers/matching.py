"""`match` statements."""

from __future__ import annotations

from typing import Any

from framesmith_bytecode import Instr
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.interpreter.frame import Frame
from framesmith_dynamo.interpreter.handler_registry import interprets
from framesmith_dynamo.values.base import TracedRaise, Value
from framesmith_dynamo.values.containers import TupleValue
from framesmith_dynamo.values.lookup.entries import special_method

MAPPING_GET = register_break(
    "mapping-with-its-own-get",
    what="a mapping pattern is matched against an object whose class defines `get` in Python",
    why="the match calls it once for each key",
    hint="match a plain dict of the items",
)

#: Py_TPFLAGS_SEQUENCE, Py_TPFLAGS_MAPPING and _Py_TPFLAGS_MATCH_SELF of CPython's object.h.
SEQUENCE, MAPPING, MATCH_SELF = 1 << 5, 1 << 6, 1 << 22


def has_flag(value: Value, flag: int) -> bool:
    """Whether the type of a value has a flag."""
    return bool(value.python_type().__flags__ & flag)


@interprets("GET_LEN")
def get_len(frame: Frame, instr: Instr) -> None:
    """Push len(top)."""
    frame.push(frame.peek(1).len_(frame))


@interprets("MATCH_SEQUENCE")
def match_sequence(frame: Frame, instr: Instr) -> None:
    """Push whether the top is a sequence."""
    frame.push(frame.constant(has_flag(frame.peek(1), SEQUENCE)))


@interprets("MATCH_MAPPING")
def match_mapping(frame: Frame, instr: Instr) -> None:
    """Push whether the top is a mapping."""
    frame.push(frame.constant(has_flag(frame.peek(1), MAPPING)))


@interprets("MATCH_KEYS")
def match_keys(frame: Frame, instr: Instr) -> None:
    """(subject, keys): push the tuple of values, or None when a key is missing."""
    subject, keys = frame.peek(2), frame.peek(1).unpack(frame)
    if keys and special_method(frame, subject, "get") is not None:
        raise GraphBreak(MAPPING_GET, subject.describe())
    if all(subject.contains(frame, key).bool_(frame) for key in keys):
        frame.push(TupleValue([subject.getitem(frame, key) for key in keys]))
    else:
        frame.push(frame.constant(None))


@interprets("MATCH_CLASS")
def match_class(frame: Frame, instr: Instr) -> None:
    """(subject, class, keyword names): push the tuple of attributes, or None when it does not match."""
    subject, cls, names = frame.popn(3)
    found = attributes(
        frame, subject, cls.as_constant(), instr.arg, [name.as_constant() for name in names.unpack(frame)]
    )
    frame.push(frame.constant(None) if found is None else TupleValue(found))


def attributes(frame: Frame, subject: Value, cls: Any, positional: int, keywords: list[str]) -> list[Value] | None:
    """Return the attributes named by a class pattern, or None if the subject is of another class or lacks one."""
    if not issubclass(subject.python_type(), cls):
        return None
    names = getattr(cls, "__match_args__", None)
    itself = names is None and bool(cls.__flags__ & MATCH_SELF)
    match_args = names or ()
    if positional > (allowed := 1 if itself else len(match_args)):
        patterns = "sub-pattern" if allowed == 1 else "sub-patterns"
        frame.raise_(TypeError, f"{cls.__name__}() accepts {allowed} positional {patterns} ({positional} given)")
    if positional and itself:
        return [subject, *_read(frame, subject, keywords)]
    try:
        return _read(frame, subject, [*match_args[:positional], *keywords])
    except TracedRaise as error:
        if issubclass(error.value.python_type(), AttributeError):
            return None
        raise


def _read(frame: Frame, subject: Value, names: list[str]) -> list[Value]:
    return [subject.getattr_(frame, name) for name in names]
