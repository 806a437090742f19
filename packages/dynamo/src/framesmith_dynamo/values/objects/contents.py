"""The builtin container inside an object whose class extends one: it holds the items; the journal tracks the object.

Its methods are the builtin type's own, which the object's class may override: where C code calls the overrides, so does
the owner.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from framesmith_dynamo.breaks import UNSUPPORTED_OPERATION, GraphBreak
from framesmith_dynamo.python_behaviour import MISSING_SETS_ITEM
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.constants.constant import ConstantValue
from framesmith_dynamo.values.containers.base import ContainerValue
from framesmith_dynamo.values.containers.deque import DequeValue
from framesmith_dynamo.values.containers.dict import DictValue
from framesmith_dynamo.values.containers.list import ListValue
from framesmith_dynamo.values.containers.mutable_sets import SetValue
from framesmith_dynamo.values.containers.sequence import is_count
from framesmith_dynamo.values.containers.sets import FrozenSetValue
from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_dynamo.values.objects.attributes import class_value
from framesmith_dynamo.values.objects.objects import ObjectValue
from framesmith_sideeffects.contents import row_for

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen


class Contents(ContainerValue):
    """Common base of the contents of all kinds. Reconstructed, they are their owner."""

    owner: ObjectValue
    __slots__ = ()

    def changes(self, tr: Tracer) -> None:
        """Record a change of the owner's contents."""
        self.owner.track(tr)
        tr.journal.mutate(self.owner)
        self.changed = True

    def referents(self) -> Iterable[Value]:
        return (self.owner,)

    def held(self) -> Iterable[Value]:
        """Return the items, and the builtin type's other state."""
        return super().referents()

    def reconstruct(self, codegen: Codegen) -> None:
        codegen(self.owner)

    def push_settings(self, codegen: Codegen) -> int:
        """Push the builtin type's state besides items; return the number of values."""
        return 0

    def copied_by_class(self, tr: Tracer, *args: Value) -> Value:
        """Return the contents of the owner's class called with these arguments: a copy, as C code makes it."""
        made = tr.call(class_value(tr, self.owner.cls, self.owner.source), args, {})
        contents = made.builtin_contents()
        if made.python_type() is not self.owner.cls or not isinstance(contents, type(self)):
            raise GraphBreak(UNSUPPORTED_OPERATION, f"a copy of {self.owner.describe()} that is {made.describe()}")
        return contents


class DictContents(Contents, DictValue):
    """The items of an object whose class extends dict, OrderedDict or defaultdict."""

    __slots__ = ("owner",)

    def __init__(self, kind: type, owner: ObjectValue) -> None:
        factory = ConstantValue(None) if kind is defaultdict else None
        super().__init__(kind, source=owner.source, factory=factory)
        self.owner = owner

    def united(self, tr: Tracer, left: Value, right: Value) -> Value | None:
        if self.cls is dict or not is_dict(left) or not is_dict(right):
            return super().united(tr, left, right)
        made = self.copied_by_class(tr, *self._settings(), whole(left))
        owner = whole(made)
        if self.cls is OrderedDict:
            owner.call_method(tr, "update", (right,), {})
        else:
            made.call_method(tr, "update", (right,), {})
        return owner

    def _settings(self) -> tuple[Value, ...]:
        return () if self.factory is None else (self.factory,)

    def m_copy(self, tr: Tracer) -> Value:
        """`copy()`: of an OrderedDict or defaultdict by its class."""
        if self.cls is dict:
            return super().m_copy(tr)
        return whole(self.copied_by_class(tr, *self._settings(), self.owner))

    def missing(self, tr: Tracer, key: Value) -> Value:
        if type_lookup(self.owner.cls, "__missing__") is not None:
            return self.owner.call_method(tr, "__missing__", (key,), {})
        return super().missing(tr, key)

    def m___missing__(self, tr: Tracer, key: Value, /) -> Value:
        """`defaultdict.__missing__`, which stores by way of the class's own `__setitem__` on some versions."""
        if not MISSING_SETS_ITEM:
            return super().missing(tr, key)
        value = self.default_for(tr, key)
        self.owner.setitem(tr, key, value)
        return value

    def push_settings(self, codegen: Codegen) -> int:
        for setting in self._settings():
            codegen(setting)
        return len(self._settings())


class ListContents(Contents, ListValue):
    """The items of an object whose class extends list."""

    __slots__ = ("owner",)

    def __init__(self, items: Iterable[Value], owner: ObjectValue) -> None:
        super().__init__(items, source=owner.source)
        self.owner = owner


class DequeContents(Contents, DequeValue):
    """The items of an object whose class extends deque."""

    __slots__ = ("owner",)

    def __init__(self, items: Iterable[Value], maxlen: int | None, owner: ObjectValue) -> None:
        super().__init__(items, maxlen, source=owner.source)
        self.owner = owner

    def changes(self, tr: Tracer) -> None:
        super().changes(tr)
        self.version += 1

    def _copied(self, tr: Tracer) -> DequeContents:
        bound = () if self.maxlen is None else (tr.constant(self.maxlen),)
        made = self.copied_by_class(tr, self.owner, *bound)
        assert isinstance(made, DequeContents)
        return made

    def m_copy(self, tr: Tracer) -> Value:
        """`copy()`, by the class."""
        return self._copied(tr).owner

    def binary_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        items = other.builtin_contents()
        if op == "+" and isinstance(items, DequeValue):
            made = self._copied(tr)
            made.add_all(tr, items.unpack(tr))
            return made.owner
        if op != "*" or not is_count(other):
            raise GraphBreak(UNSUPPORTED_OPERATION, f"{self.owner.describe()} {op} {other.describe()}")
        made = self._copied(tr)
        made.replace(tr, made.repeated(tr, other))
        return made.owner

    def reflected_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        return self.binary_op(tr, op, other) if op == "*" and is_count(other) else None

    def push_settings(self, codegen: Codegen) -> int:
        codegen.load_const(self.maxlen)
        return 1


class SetContents(Contents, SetValue):
    """The members of an object whose class extends set. Its methods return plain sets."""

    __slots__ = ("owner",)

    def __init__(self, members: dict[object, Value], owner: ObjectValue) -> None:
        super().__init__(set(members), members, source=owner.source)
        self.owner = owner

    def changes(self, tr: Tracer) -> None:
        super().changes(tr)
        self.version += 1


class FrozenContents(Contents, FrozenSetValue):
    """The members of an object whose class extends frozenset. Its methods return plain frozensets."""

    __slots__ = ("owner",)

    def __init__(self, members: dict[object, Value], owner: ObjectValue) -> None:
        super().__init__(frozenset(members), members, source=owner.source)
        self.owner = owner

    def m_copy(self, tr: Tracer) -> Value:
        return self.operation(tr, "copy", [])

    def reconstruct_contents(self, codegen: Codegen) -> None:
        """Push a plain set of the members."""
        self.push_members(codegen)

    def contents_type(self) -> type:
        """The builtin type."""
        return frozenset

    def item_changes(self) -> None:
        """It does not change."""


def is_dict(value: Value) -> bool:
    """Whether a value is a dict, or an object whose class extends one."""
    return isinstance(value.builtin_contents(), DictValue)


def whole(value: Value) -> Value:
    """Return the object that owns contents; other values unchanged."""
    return value.owner if isinstance(value, Contents) else value


#: The contents of a new object for each builtin base; subclasses come before their bases.
KINDS: Final[dict[type, Callable[[ObjectValue], Contents]]] = {
    OrderedDict: lambda owner: DictContents(OrderedDict, owner),
    defaultdict: lambda owner: DictContents(defaultdict, owner),
    dict: lambda owner: DictContents(dict, owner),
    list: lambda owner: ListContents((), owner),
    deque: lambda owner: DequeContents((), None, owner),
    set: lambda owner: SetContents({}, owner),
    frozenset: lambda owner: FrozenContents({}, owner),
}


def build_container(cls: type, kind: Any, contents: Any, *settings: Any) -> Any:
    """Called by compiled code: return an object of `cls` with these contents (None: empty), bypassing its own methods.

    `settings`: the values pushed by `push_settings` of the kind.
    """
    if kind is frozenset:
        return frozenset.__new__(cls, contents)
    made = kind.__new__(cls)
    if kind is deque:
        deque.__init__(made, (), *settings)
    elif kind is defaultdict:
        defaultdict.__init__(made, *settings)
    if contents is not None:
        row_for(dict if kind is defaultdict else kind).fill(made, contents)
    return made
