"""Construction and unpacking of containers."""

from __future__ import annotations

from typing import Any

from framesmith_bytecode import Instr
from framesmith_dynamo.interpreter.frame import Frame
from framesmith_dynamo.interpreter.handler_registry import interprets
from framesmith_dynamo.values.base import Value
from framesmith_dynamo.values.containers import TupleValue, new_dict, new_list, new_set
from framesmith_dynamo.values.containers.mappings import pairs_of
from framesmith_dynamo.values.errors import refuse_positional
from framesmith_dynamo.values.iteration.iterators import holding, next_or_none
from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_dynamo.values.objects.objects import ObjectValue


@interprets("BUILD_TUPLE")
def build_tuple(frame: Frame, instr: Instr) -> None:
    """(a, b, ...)"""
    frame.push(TupleValue(frame.popn(instr.arg)))


@interprets("BUILD_LIST")
def build_list(frame: Frame, instr: Instr) -> None:
    """[a, b, ...]"""
    frame.push(new_list(frame, frame.popn(instr.arg)))


@interprets("BUILD_SET")
def build_set(frame: Frame, instr: Instr) -> None:
    """{a, b, ...}"""
    frame.push(new_set(frame, frame.popn(instr.arg)))


@interprets("BUILD_MAP")
def build_map(frame: Frame, instr: Instr) -> None:
    """{a: b, ...}"""
    items = frame.popn(2 * instr.arg)
    frame.push(new_dict(frame, zip(items[::2], items[1::2], strict=True)))


@interprets("BUILD_CONST_KEY_MAP")
def build_const_key_map(frame: Frame, instr: Instr) -> None:
    """{"a": x, ...} with constant keys"""
    keys = frame.pop().unpack(frame)
    frame.push(new_dict(frame, zip(keys, frame.popn(instr.arg), strict=True)))


@interprets("LIST_TO_TUPLE")
def list_to_tuple(frame: Frame, instr: Instr) -> None:
    """tuple(list)"""
    frame.push(TupleValue(frame.pop().unpack(frame)))


@interprets("LIST_APPEND")
def list_append(frame: Frame, instr: Instr) -> None:
    """Append the top to the list below."""
    value = frame.pop()
    frame.peek(instr.arg).call_method(frame, "append", (value,), {})


@interprets("SET_ADD")
def set_add(frame: Frame, instr: Instr) -> None:
    """Add the top to the set below."""
    value = frame.pop()
    frame.peek(instr.arg).call_method(frame, "add", (value,), {})


@interprets("MAP_ADD")
def map_add(frame: Frame, instr: Instr) -> None:
    """Store (key, value) in the dict below."""
    key, value = frame.popn(2)
    frame.peek(instr.arg).setitem(frame, key, value)


@interprets("LIST_EXTEND")
def list_extend(frame: Frame, instr: Instr) -> None:
    """Extend the list below by an iterable."""
    items = frame.pop()
    if all(type_lookup(items.python_type(), name) is None for name in ("__iter__", "__getitem__")):
        refuse_positional(frame, lambda items: [*items], items)
    frame.peek(instr.arg).call_method(frame, "extend", (items,), {})


@interprets("SET_UPDATE")
def set_update(frame: Frame, instr: Instr) -> None:
    """Update the set below by an iterable."""
    items = frame.pop()
    frame.peek(instr.arg).call_method(frame, "update", (items,), {})


@interprets("DICT_UPDATE")
def dict_update(frame: Frame, instr: Instr) -> None:
    """Update the dict below by a mapping."""
    items = frame.pop()
    if type_lookup(items.python_type(), "keys") is None:
        refuse_positional(frame, lambda items: {**items}, items)
    frame.peek(instr.arg).call_method(frame, "update", (items,), {})


@interprets("DICT_MERGE")
def dict_merge(frame: Frame, instr: Instr) -> None:
    """DICT_UPDATE that rejects existing keys, with Python's message, which names the function."""
    mapping = frame.pop()
    target = frame.peek(instr.arg)
    if type_lookup(mapping.python_type(), "keys") is None:
        mapping.unsupported("merging keywords")
    for key, value in pairs_of(frame, mapping):
        if target.contains(frame, key).bool_(frame):
            mapping.unsupported("merging repeated keywords")
        target.setitem(frame, key, value)


@interprets("UNPACK_SEQUENCE")
def unpack_sequence(frame: Frame, instr: Instr) -> None:
    """Push n values, the first on top."""
    value = frame.pop()
    items = unpacked(frame, value, instr.arg + 1)
    if len(items) != instr.arg:
        frame.raise_(ValueError, *count_error(value.python_type(), len(items), f"[{'_,' * instr.arg}]"))
    frame.stack.extend(reversed(items))


@interprets("UNPACK_EX")
def unpack_ex(frame: Frame, instr: Instr) -> None:
    """Unpack around a starred target."""
    before, after = instr.arg
    value = frame.pop()
    items = unpacked(frame, value)
    if len(items) < before + after:
        target = f"[{'_,' * before} *_, {'_,' * after}]"
        frame.raise_(ValueError, *count_error(value.python_type(), len(items), target))
    middle = new_list(frame, items[before : len(items) - after])
    frame.stack.extend(reversed([*items[:before], middle, *items[len(items) - after :]]))


def unpacked(frame: Frame, value: Value, most: int | None = None) -> list[Value]:
    """Return the items of an iterable, at most `most`."""
    cls = value.python_type()
    if all(type_lookup(cls, name) is None for name in ("__iter__", "__getitem__")):
        refuse_positional(frame, unpack_nothing, value)
    iterator = value.iter_(frame) if isinstance(value, ObjectValue) else value
    if most is None or type_lookup(iterator.python_type(), "__next__") is None:
        return iterator.unpack(frame)
    items: list[Value] = []
    with holding(frame, iterator):
        while len(items) < most and (item := next_or_none(frame, iterator)) is not None:
            items.append(item)
    return items


def unpack_nothing(value: Any) -> None:
    """Unpack an object that is not iterable: Python's error."""
    (_,) = value


def count_error(kind: type, found: int, target: str) -> tuple[Any, ...]:
    """Return what Python says of unpacking an object of a type, with a wrong number of items, to a target."""
    items = range(found)
    value = dict.fromkeys(items) if kind is dict else kind(items) if kind in (list, tuple) else iter(items)
    try:
        exec(f"{target} = value", {"value": value})
    except ValueError as error:
        return error.args
    raise AssertionError(f"{found} items are no error for {target}")
