"""The observable outcome of running a function, and splits of a function at each of its items."""

from __future__ import annotations

import sys
from types import CodeType, FunctionType

from framesmith_bytecode import Analyses, decode, split, why_no_continuation

EFFECTS: list[object] = []


def say(value=None, *more, **named):
    """An effect, with the exception being handled."""
    EFFECTS.append((shown(value), shown(more), shown(named), type(sys.exc_info()[1])))
    return value


def boom(kind=ValueError, *arguments):
    """An effect that raises."""
    EFFECTS.append(("boom", kind))
    raise kind(*arguments)


class Manager:
    """A context manager whose exit may swallow or raise."""

    def __init__(self, tag, swallow=(), on_exit=None, on_enter=None):
        self.tag, self.swallow, self.on_exit, self.on_enter = tag, swallow, on_exit, on_enter

    def __enter__(self):
        EFFECTS.append(("enter", self.tag))
        if self.on_enter:
            raise self.on_enter(self.tag)
        return self.tag

    def __exit__(self, kind, value, trace):
        EFFECTS.append(("exit", self.tag, kind, trace is not None and trace.tb_lineno))
        if self.on_exit:
            raise self.on_exit(self.tag)
        return kind is not None and issubclass(kind, tuple(self.swallow))


class Mortal:
    """An object whose death is an effect."""

    def __init__(self, name):
        self.name = name

    def __del__(self):
        EFFECTS.append(("died", self.name))


class Box:
    """Attributes, items and operators whose uses are effects."""

    def __init__(self, **values):
        self.__dict__.update(values)

    def __getitem__(self, key):
        return say(self.__dict__.get("item", 1), "get", key)

    def __setitem__(self, key, value):
        say(value, "set", key)
        self.item = value

    def __delitem__(self, key):
        say(key, "delete")

    def __iadd__(self, other):
        say(other, "iadd")
        return self

    def __enter__(self):
        return say(self)

    def __exit__(self, *exc):
        say("left", exc[0])

    def method(self, *values, **named):
        say("method", *values, **named)
        return self


def shown(value, depth=0):
    """A representation of a value that compares by its contents, not by identity."""
    if isinstance(value, BaseException):
        return described(value)
    if isinstance(value, (list, tuple)):
        return type(value), [shown(item, depth + 1) for item in value] if depth < 6 else "..."
    if isinstance(value, (set, frozenset)):
        return type(value), sorted(map(repr, value))
    if isinstance(value, dict):
        return [(shown(key, depth + 1), shown(item, depth + 1)) for key, item in value.items()] if depth < 6 else "..."
    if isinstance(value, (str, int, float, bytes, slice, type(None))):
        return type(value), repr(value)
    return type(value).__qualname__


def described(error, depth=0):
    """An exception with its causes, contexts and members."""
    if error is None or depth > 6:
        return None
    members = [described(member, depth + 1) for member in getattr(error, "exceptions", ())]
    around = described(error.__cause__, depth + 1), described(error.__context__, depth + 1), error.__suppress_context__
    return type(error).__name__, shown(error.args) if not members else error.message, *around, members


def handover_at(code: CodeType) -> int:
    """Offset of the call at the end of a prefix."""
    import dis

    return [item.offset for item in dis.get_instructions(code) if item.opname == "CALL"][-1]


def lines(error, function, handovers):
    """Lines of a traceback's entries in the function, without those of prefixes calling their continuations."""
    found, entry = [], error.__traceback__
    while entry is not None:
        code = entry.tb_frame.f_code
        if code.co_name == function.__name__ and code.co_filename == function.__code__.co_filename:
            if entry.tb_lasti < handovers.get(code, sys.maxsize):
                found.append(entry.tb_lineno)
        entry = entry.tb_next
    return found


def observe(function, arguments, handovers=None):
    """Result or exception (with its lines), and the effects in order."""
    EFFECTS.clear()
    try:
        result = ("returned", shown(function(*arguments())))
    except Exception as error:
        result = ("raised", described(error), lines(error, function, handovers or {}))
    assert sys.exc_info() == (None, None, None)
    return result, list(EFFECTS)


def like(function, code):
    """A copy of the function with another code."""
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def split_everywhere(function, runs, *, step=1, again=0):
    """Split at every `step`-th item and compare; with `again`, split every `again`-th continuation at as many items.

    Returns the refused indices with their reasons.
    """
    known = Analyses(decode(function.__code__))
    expected = [observe(function, arguments) for arguments in runs]
    refused = {}
    for index, depth in enumerate(known.stack_states.before):
        if depth is None or index % step:
            continue
        reason = why_no_continuation(known, index, own_cells=True)
        if reason is not None:
            refused[index] = reason
            continue
        prefix, continuation = split(known, index)
        handovers = {prefix: handover_at(prefix)}
        found = [observe(like(function, prefix), arguments, handovers) for arguments in runs]
        assert found == expected, (index, known.bytecode.instructions[index])
        if again and index % again == 0:
            split_twice(function, runs, expected, prefix, continuation.code, again)
    return refused


def split_twice(function, runs, expected, prefix, code, step):
    """Split the continuation of a prefix as well, at every `again`-th item."""
    known = Analyses(decode(code))
    for index, depth in enumerate(known.stack_states.before):
        if depth is None or index % step or why_no_continuation(known, index, own_cells=True):
            continue
        second = split(known, index).prefix
        whole = prefix.replace(co_consts=tuple(second if item is code else item for item in prefix.co_consts))
        handovers = {whole: handover_at(whole), second: handover_at(second)}
        found = [observe(like(function, whole), arguments, handovers) for arguments in runs]
        assert found == expected, (code.co_qualname, index, known.bytecode.instructions[index])
