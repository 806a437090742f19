"""Objects whose class extends a builtin container (`class ModelOutput(OrderedDict)`): attributes and contents."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from framesmith_dynamo.breaks import UNSUPPORTED_OPERATION, GraphBreak
from framesmith_dynamo.values.attribute_dicts.owners import note_instance_dict
from framesmith_dynamo.values.base import Args, Found, Kwargs, Tracer, Value
from framesmith_dynamo.values.c_methods import C_METHODS, c_method
from framesmith_dynamo.values.callables import between, named
from framesmith_dynamo.values.containers.deque import DequeValue
from framesmith_dynamo.values.containers.dict import fill_from
from framesmith_dynamo.values.containers.items import LazyItem
from framesmith_dynamo.values.containers.mappings import pairs_of
from framesmith_dynamo.values.containers.mutable_sets import SET_OF_OBJECTS
from framesmith_dynamo.values.containers.sets import hashed
from framesmith_dynamo.values.errors import namesake, refuse
from framesmith_dynamo.values.lookup.entries import guard_class
from framesmith_dynamo.values.lookup.layouts import has_python_layout
from framesmith_dynamo.values.lookup.static import MISSING, type_lookup, user_method
from framesmith_dynamo.values.objects.classes import CONSTRUCTION
from framesmith_dynamo.values.objects.contents import (
    KINDS,
    DequeContents,
    FrozenContents,
    ListContents,
    SetContents,
    build_container,
)
from framesmith_dynamo.values.objects.objects import ObjectValue
from framesmith_dynamo.values.wrap_registry import Family, wraps_family
from framesmith_guards import AttrSource, ItemSource, MembersSource, StoredItemSource, is_constant, members_of

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source


def kind_of(cls: type) -> type | None:
    return next((kind for kind in KINDS if issubclass(cls, kind)), None)


class ContainerObjectValue(ObjectValue):
    """An object that is also a container. `base` holds the contents and implements the builtin type's own methods."""

    __slots__ = ("base", "kind")

    def __init__(self, cls: type, kind: type, obj: Any = MISSING, *, source: Source | None = None) -> None:
        super().__init__(cls, obj, source=source)
        self.kind = kind
        self.base: Any = KINDS[kind](self)

    def call_c_method(self, tr: Tracer, found: Found, name: str, args: Args, kwargs: Kwargs) -> Value:
        if found.owner in KINDS and (found.owner, name) not in C_METHODS:
            result: Value = self.base.call_method(tr, name, args, kwargs)
            return self if result is self.base else result
        return super().call_c_method(tr, found, name, args, kwargs)

    def read_c_data(self, tr: Tracer, found: Found, name: str) -> Value:
        if found.owner in KINDS and name != "__dict__":  # which OrderedDict's class has by itself
            settings: Value = self.base.getattr_(tr, name)
            return settings
        return super().read_c_data(tr, found, name)

    def store_own(self, tr: Tracer, name: str, value: Value) -> None:
        super().store_own(tr, name, value)
        if name == "default_factory" and self.kind is defaultdict:
            self.base.factory = value

    def builtin_contents(self) -> Value:
        contents: Value = self.base
        return contents

    def hash_key(self, tr: Tracer) -> object:
        asked = [type_lookup(self.cls, name) for name in ("__hash__", "__eq__")]
        if self.kind is frozenset and all(found is not None and found.owner is frozenset for found in asked):
            key: object = self.base.hash_key(tr)
            return key
        return super().hash_key(tr)

    # The journal's interface of containers

    def contents_type(self) -> type:
        """The builtin type whose methods write the contents."""
        kind: type = self.base.contents_type()
        return kind

    def reconstruct_contents(self, codegen: Codegen) -> None:
        """Push a plain container with the current contents."""
        self.base.reconstruct_contents(codegen)

    def reconstruct_empty(self, codegen: Codegen) -> None:
        """Push a new object of the class without contents."""
        self._push_built(codegen, lambda: codegen.load_const(None))

    def item_changes(self) -> Sequence[Any] | None:
        """Single stores and deletions, if the base records them."""
        changes: Sequence[Any] | None = self.base.item_changes()
        return changes

    def referents(self) -> Iterable[Value]:
        held: Iterable[Value] = self.base.held()
        return held

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None:
            super().reconstruct(codegen)
        else:
            self._push_built(codegen, lambda: self.reconstruct_contents(codegen))

    def _push_built(self, codegen: Codegen, push_contents: Callable[[], None]) -> None:
        codegen.push_function(build_container)
        codegen.load_const(self.cls)
        codegen.load_const(self.kind)
        push_contents()
        codegen.call(3 + self.base.push_settings(codegen))


@c_method("__init__", OrderedDict, dict)
@c_method("update", OrderedDict)
def _update(tr: Tracer, self: ContainerObjectValue, args: Args, kwargs: Kwargs) -> Value:
    """OrderedDict's update and constructor store through an overridden `__setitem__`; dict's do not."""
    between(tr, OrderedDict if self.kind is OrderedDict else dict, args, {}, 0, 1)
    store = self.setitem if self.kind is OrderedDict and user_method(self.cls, "__setitem__") else self.base.setitem
    for other in args:
        for key, value in pairs_of(tr, other, self.kind):
            store(tr, key, value)
    for name, value in kwargs.items():
        store(tr, tr.constant(name), value)
    return tr.constant(None)


@c_method("__init__", defaultdict)
def _init_defaultdict(tr: Tracer, self: ContainerObjectValue, args: Args, kwargs: Kwargs) -> Value:
    factory = args[0] if args else tr.constant(None)
    if not factory.is_none() and type_lookup(factory.python_type(), "__call__") is None:
        refuse(tr, defaultdict, args, kwargs)
    self.store_own(tr, "default_factory", factory)
    return _update(tr, self, args[1:], kwargs)


@c_method("__init__", list)
def _init_list(tr: Tracer, self: ContainerObjectValue, args: Args, kwargs: Kwargs) -> Value:
    given = between(tr, list, args, kwargs, 0, 1)
    _empty(tr, self)
    if given:
        self.base.call_method(tr, "extend", given, {})
    return tr.constant(None)


@c_method("__init__", set)
def _init_set(tr: Tracer, self: ContainerObjectValue, args: Args, kwargs: Kwargs) -> Value:
    given = between(tr, namesake(self.cls, (set,)), args, kwargs, 0, 1)
    _empty(tr, self)
    self.base.call_method(tr, "update", given, {})
    return tr.constant(None)


@c_method("__init__", deque)
def _init_deque(tr: Tracer, self: ContainerObjectValue, args: Args, kwargs: Kwargs) -> Value:
    if self.source is not None:
        raise GraphBreak(CONSTRUCTION, f"{self.describe()}, created again")
    given = named(tr, deque, args, kwargs, ("iterable", "maxlen"), 0)
    made = tr.call(tr.constant(deque), (), {name: value for name, value in given.items() if name == "maxlen"})
    assert isinstance(made, DequeValue)
    self.base = DequeContents((), made.maxlen, self)
    if "iterable" in given:
        self.base.call_method(tr, "extend", (given["iterable"],), {})
    return tr.constant(None)


def _empty(tr: Tracer, self: ContainerObjectValue) -> None:
    if self.base.len_(tr).as_constant():
        self.base.call_method(tr, "clear", (), {})


def _extends_container(obj: Any) -> bool:
    cls = type(obj)
    return has_python_layout(cls) and kind_of(cls) is not None and _has_no_other_layout(cls)


def _has_no_other_layout(cls: type) -> bool:
    """Whether the only C layout among the bases is the container's."""
    return all(
        base in KINDS or has_python_layout(base) or not base.__basicsize__ or base is object for base in cls.__mro__
    )


@wraps_family(Family.CONTAINER_OBJECT, _extends_container)
def wrap_container_object(tr: Tracer, obj: Any, source: Source) -> Value:
    """Wrap an object of a class that extends a builtin container."""
    kind = kind_of(type(obj))
    assert kind is not None
    tr.guard(source, "TYPE_MATCH", type(obj))
    guard_class(tr, type(obj), source)
    value = ContainerObjectValue(type(obj), kind, obj, source=source)
    value.track(tr)
    note_instance_dict(tr, value)
    step = ItemSource if user_method(type(obj), "__getitem__") is None else StoredItemSource
    fill = _FILLERS.get(kind, _fill_dict)
    fill(tr, value, obj, source, step)
    return value


Step = Callable[..., "Source"]
Filler = Callable[[Tracer, ContainerObjectValue, Any, "Source", Step], None]


def _fill_dict(tr: Tracer, value: ContainerObjectValue, obj: Any, source: Source, step: Step) -> None:
    if isinstance(obj, defaultdict):
        _refuse_overrides(value, "default_factory")
        value.base.factory = tr.wrap(obj.default_factory, AttrSource(source, "default_factory"))
    fill_from(tr, value.base, obj, source, step)


def _fill_list(tr: Tracer, value: ContainerObjectValue, obj: Any, source: Source, step: Step) -> None:
    tr.guard(source, "LENGTH", list.__len__(obj))
    value.base = ListContents((LazyItem(tr, item, source, i, step) for i, item in enumerate(list.__iter__(obj))), value)


def _fill_deque(tr: Tracer, value: ContainerObjectValue, obj: Any, source: Source, step: Step) -> None:
    _refuse_overrides(value, "maxlen", "__len__")
    tr.guard(source, "LENGTH", deque.__len__(obj))
    tr.guard(AttrSource(source, "maxlen"), "EQUALS_MATCH", obj.maxlen)
    items = (LazyItem(tr, item, source, i, step) for i, item in enumerate(deque.__iter__(obj)))
    value.base = DequeContents(items, obj.maxlen, value)


def _fill_set(tr: Tracer, value: ContainerObjectValue, obj: Any, source: Source, step: Step) -> None:
    held = members_of(obj)
    if not all(map(is_constant, held)):
        raise GraphBreak(SET_OF_OBJECTS, f"at {source.name}")
    tr.guard(MembersSource(source), "EQUALS_MATCH", held)
    members: dict[object, Value] = {item: tr.constant(item) for item in held}
    value.base = (SetContents if value.kind is set else FrozenContents)(members, value)


_FILLERS: Final[dict[type, Filler]] = {
    list: _fill_list,
    deque: _fill_deque,
    set: _fill_set,
    frozenset: _fill_set,
}


def _refuse_overrides(value: ContainerObjectValue, *names: str) -> None:
    """Break for a class with its own versions of methods that guards bypass."""
    for name in (*names, "__getattribute__"):
        found = type_lookup(value.cls, name)
        if found is not None and has_python_layout(found.owner):
            raise GraphBreak(UNSUPPORTED_OPERATION, f"{value.describe()}, whose class has its own {name}")


@c_method("__new__", *KINDS)
def make_container_object(tr: Tracer, cls: type, args: Args, kwargs: Kwargs) -> Value:
    """`dict.__new__(cls)` and the like, for a subclass."""
    kind = kind_of(cls)
    if kind is None or not _has_no_other_layout(cls):
        raise GraphBreak(CONSTRUCTION, f"{cls.__module__}.{cls.__qualname__}")
    value = ContainerObjectValue(cls, kind)
    value.track(tr)
    if kind is frozenset and args:
        value.base = FrozenContents(hashed(tr, args[0]), value)
    return value
