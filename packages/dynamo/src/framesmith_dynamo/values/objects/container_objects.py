"""Objects whose class extends a builtin container (`class ModelOutput(OrderedDict)`): attributes and contents."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from framesmith_dynamo.breaks import UNSUPPORTED_OPERATION, GraphBreak
from framesmith_dynamo.values.base import Args, Found, Kwargs, Tracer, Value
from framesmith_dynamo.values.c_methods import C_METHODS, c_method
from framesmith_dynamo.values.containers.dict import DictValue, fill_from
from framesmith_dynamo.values.containers.items import LazyItem
from framesmith_dynamo.values.containers.list import ListValue
from framesmith_dynamo.values.containers.mappings import pairs_of
from framesmith_dynamo.values.holders import MISSING, guard_class, type_lookup, user_method
from framesmith_dynamo.values.objects.classes import CONSTRUCTION
from framesmith_dynamo.values.objects.instance_dicts import note_instance_dict
from framesmith_dynamo.values.objects.layouts import has_python_layout
from framesmith_dynamo.values.objects.objects import ObjectValue
from framesmith_dynamo.values.wrap_registry import wraps_family
from framesmith_guards import ItemSource, StoredItemSource
from framesmith_sideeffects.contents import row_for

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source


class DictContents(DictValue):
    """The items of an object whose class extends dict or OrderedDict; the object itself is what the journal follows."""

    __slots__ = ("owner",)

    def __init__(self, kind: type, owner: ContainerObjectValue) -> None:
        super().__init__(kind, source=owner.source)
        self.owner = owner

    def changes(self, tr: Tracer) -> None:
        self.owner.track(tr)
        tr.journal.mutate(self.owner)
        self.changed = True

    def binary_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if op == "|" and isinstance(other.builtin_contents(), DictValue):
            raise GraphBreak(UNSUPPORTED_OPERATION, f"{self.owner.describe()} | {other.describe()}")
        return super().binary_op(tr, op, other)

    def missing(self, tr: Tracer, key: Value) -> Value:
        if type_lookup(self.owner.cls, "__missing__") is not None:
            return self.owner.call_method(tr, "__missing__", (key,), {})
        return super().missing(tr, key)


class ListContents(ListValue):
    """The items of an object whose class extends list."""

    __slots__ = ("owner",)

    def __init__(self, items: Iterable[Value], owner: ContainerObjectValue) -> None:
        super().__init__(items, source=owner.source)
        self.owner = owner

    def changes(self, tr: Tracer) -> None:
        self.owner.track(tr)
        tr.journal.mutate(self.owner)
        self.changed = True


#: Builtin bases in the order in which they are looked for: subclasses first.
KINDS: Final = (OrderedDict, defaultdict, dict, list)
FOLLOWED: Final = (OrderedDict, dict, list)


def kind_of(cls: type) -> type | None:
    """The builtin container a class extends, or None."""
    return next((kind for kind in KINDS if issubclass(cls, kind)), None)


class ContainerObjectValue(ObjectValue):
    """An object that is also a container. `base` holds the contents and answers the builtin type's own methods."""

    __slots__ = ("base", "kind")

    def __init__(self, cls: type, kind: type, obj: Any = MISSING, *, source: Source | None = None) -> None:
        super().__init__(cls, obj, source=source)
        self.kind = kind
        self.base: DictContents | ListContents = ListContents((), self) if kind is list else DictContents(kind, self)

    def call_c_method(self, tr: Tracer, found: Found, name: str, args: Args, kwargs: Kwargs) -> Value:
        if found.owner in KINDS and (found.owner, name) not in C_METHODS:
            result = self.base.call_method(tr, name, args, kwargs)
            return self if result is self.base else result
        return super().call_c_method(tr, found, name, args, kwargs)

    def builtin_contents(self) -> Value:
        return self.base

    # What the journal asks of containers

    def contents_type(self) -> type:
        """The builtin type whose methods write the contents."""
        return self.kind

    def reconstruct_contents(self, codegen: Codegen) -> None:
        """Push a plain container with the present contents."""
        self.base.reconstruct_contents(codegen)

    def reconstruct_empty(self, codegen: Codegen) -> None:
        """Push a new object of the class without contents."""
        kind: Any = self.kind
        codegen.push_callable(lambda: codegen.load_const(kind.__new__))
        codegen.load_const(self.cls)
        codegen.call(1)

    def item_changes(self) -> Sequence[Any] | None:
        """Single stores and deletions, when the base knows them."""
        return self.base.item_changes()

    def referents(self) -> Iterable[Value]:
        return self.base.referents()

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None:
            super().reconstruct(codegen)
            return
        codegen.push_callable(lambda: codegen.load_const(build_container))
        codegen.load_const(self.cls)
        codegen.load_const(self.kind)
        self.reconstruct_contents(codegen)
        codegen.call(3)


def build_container(cls: type, kind: Any, contents: Any) -> Any:
    """Run by compiled code: an object of `cls` with these contents, past the class's own methods."""
    made = kind.__new__(cls)
    row_for(kind).fill(made, contents)
    return made


@c_method("__init__", OrderedDict, dict)
@c_method("update", OrderedDict)
def _update(tr: Tracer, self: ContainerObjectValue, args: Args, kwargs: Kwargs) -> Value:
    """OrderedDict's update and constructor store through an overridden `__setitem__`; dict's do not."""
    store = self.setitem if self.kind is OrderedDict and user_method(self.cls, "__setitem__") else self.base.setitem
    for other in args:
        for key, value in pairs_of(tr, other, self.kind):
            store(tr, key, value)
    for name, value in kwargs.items():
        store(tr, tr.constant(name), value)
    return tr.constant(None)


@c_method("__init__", list)
def _list_init(tr: Tracer, self: ContainerObjectValue, args: Args, kwargs: Kwargs) -> Value:
    if args:
        self.base.call_method(tr, "extend", args, kwargs)
    return tr.constant(None)


def _extends_container(obj: Any) -> bool:
    cls = type(obj)
    return has_python_layout(cls) and kind_of(cls) in FOLLOWED and _has_no_other_layout(cls)


def _has_no_other_layout(cls: type) -> bool:
    """Whether the only C layout among the bases is the container's."""
    return all(
        base in (object, OrderedDict, dict, list) or has_python_layout(base) or not base.__basicsize__
        for base in cls.__mro__
    )


@wraps_family(_extends_container, priority=20)
def wrap_container_object(tr: Tracer, obj: Any, source: Source) -> Value:
    """An object of a class that extends dict, OrderedDict or list."""
    kind = kind_of(type(obj))
    assert kind is not None
    tr.guard(source, "TYPE_MATCH", type(obj))
    guard_class(tr, type(obj), source)
    value = ContainerObjectValue(type(obj), kind, obj, source=source)
    value.track(tr)
    note_instance_dict(tr, value)
    step = ItemSource if user_method(type(obj), "__getitem__") is None else StoredItemSource
    if isinstance(value.base, DictContents):
        fill_from(tr, value.base, obj, source, step)
    else:
        tr.guard(source, "LENGTH", list.__len__(obj))
        items = [LazyItem(tr, item, source, i, step) for i, item in enumerate(list.__iter__(obj))]
        value.base = ListContents(items, value)
    return value


@c_method("__new__", dict, OrderedDict, list)
def make_container_object(tr: Tracer, cls: type, args: Args, kwargs: Kwargs) -> Value:
    """`dict.__new__(cls)` and the like, for a subclass."""
    kind = kind_of(cls)
    if kind not in FOLLOWED or not _has_no_other_layout(cls):
        raise GraphBreak(CONSTRUCTION, f"{cls.__module__}.{cls.__qualname__}")
    assert kind is not None
    value = ContainerObjectValue(cls, kind)
    value.track(tr)
    return value
