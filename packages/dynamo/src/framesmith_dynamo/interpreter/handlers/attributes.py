"""Attributes, items and slices."""

from __future__ import annotations

from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, WrapperDescriptorType

from framesmith_bytecode import Instr, SuperShape
from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.interpreter.frame import Frame
from framesmith_dynamo.interpreter.handler_registry import interprets
from framesmith_dynamo.interpreter.method_slots import MethodSlot, callable_slots
from framesmith_dynamo.values.base import Value
from framesmith_dynamo.values.lookup.static import type_lookup

#: Class entries that make methods; reading one has no effect.
METHODS = (FunctionType, BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)


@interprets("LOAD_ATTR")
def load_attr(frame: Frame, instr: Instr) -> None:
    """Replace an object by its attribute."""
    frame.push(frame.pop().getattr_(frame, instr.arg))


@interprets("LOAD_METHOD")
def load_method(frame: Frame, instr: Instr) -> None:
    """Replace an object by two call slots: the name to call and the object, or NULL and the attribute.

    Only a method of the class can be pending: any other look-up may raise, or run code, before the arguments do. One
    that breaks is pending too: the call then breaks, where the NULL slots of the stack are known.
    """
    owner = frame.pop()
    attribute = None if _is_method(owner, instr.arg) else _attribute(frame, owner, instr.arg)
    if attribute is None:
        frame.stack.append(MethodSlot(owner, instr.arg))
        frame.stack.append(owner)
    else:
        frame.stack.extend(callable_slots(attribute))


def _is_method(owner: Value, name: str) -> bool:
    found = type_lookup(owner.python_type(), name)
    return found is not None and isinstance(found.raw, METHODS)


def _attribute(frame: Frame, owner: Value, name: str) -> Value | None:
    try:
        return owner.getattr_(frame, name)
    except GraphBreak:
        return None


@interprets("STORE_ATTR")
def store_attr(frame: Frame, instr: Instr) -> None:
    """Pop (value, object) and set the attribute."""
    owner = frame.pop()
    owner.setattr_(frame, instr.arg, frame.pop())


@interprets("DELETE_ATTR")
def delete_attr(frame: Frame, instr: Instr) -> None:
    """Pop an object and delete its attribute."""
    frame.pop().delattr_(frame, instr.arg)


@interprets("LOAD_SUPER_ATTR")
def load_super_attr(frame: Frame, instr: Instr) -> None:
    """Replace (super, class, self) by the attribute of the super object."""
    shape: SuperShape = instr.arg
    fn, cls, self = frame.popn(3)
    frame.push(frame.call(fn, (cls, self), {}).getattr_(frame, shape.name))


@interprets("LOAD_SUPER_METHOD")
def load_super_method(frame: Frame, instr: Instr) -> None:
    """Replace (super, class, self) by two call slots for a method of the super object."""
    shape: SuperShape = instr.arg
    fn, cls, self = frame.popn(3)
    owner = frame.call(fn, (cls, self), {})
    frame.stack.append(MethodSlot(owner, shape.name))
    frame.stack.append(owner)


@interprets("BINARY_SUBSCR")
def binary_subscr(frame: Frame, instr: Instr) -> None:
    """container[key]"""
    key = frame.pop()
    frame.push(frame.pop().getitem(frame, key))


@interprets("STORE_SUBSCR")
def store_subscr(frame: Frame, instr: Instr) -> None:
    """container[key] = value"""
    value, container, key = frame.popn(3)
    container.setitem(frame, key, value)


@interprets("DELETE_SUBSCR")
def delete_subscr(frame: Frame, instr: Instr) -> None:
    """del container[key]"""
    container, key = frame.popn(2)
    container.delitem(frame, key)


def make_slice(frame: Frame, parts: list[Value]) -> Value:
    """The value of slice(*parts)."""
    return frame.call(frame.constant(slice), parts, {})


@interprets("BINARY_SLICE")
def binary_slice(frame: Frame, instr: Instr) -> None:
    """container[start:stop]"""
    parts = frame.popn(2)
    frame.push(frame.pop().getitem(frame, make_slice(frame, parts)))


@interprets("STORE_SLICE")
def store_slice(frame: Frame, instr: Instr) -> None:
    """container[start:stop] = value"""
    parts = frame.popn(2)
    value, container = frame.popn(2)
    container.setitem(frame, make_slice(frame, parts), value)


@interprets("BUILD_SLICE")
def build_slice(frame: Frame, instr: Instr) -> None:
    """slice(start, stop[, step])"""
    frame.push(make_slice(frame, frame.popn(instr.arg)))
