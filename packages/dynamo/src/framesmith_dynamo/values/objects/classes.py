"""Classes as values: attributes through the metaclass, objects created by interpreting `__new__` and `__init__`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import FunctionType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values.attribute_dicts.mapping_proxy import class_proxy
from framesmith_dynamo.values.base import Args, Found, Kwargs, Tracer, Value
from framesmith_dynamo.values.c_methods import C_METHODS
from framesmith_dynamo.values.callables import find_handler
from framesmith_dynamo.values.constants.constant import fold
from framesmith_dynamo.values.containers import new_list
from framesmith_dynamo.values.errors import answered, iterator
from framesmith_dynamo.values.lookup.entries import (
    NO_SOURCE,
    class_source,
    entry_value,
    guard_class,
    library_path,
    read_first_check,
    slot_check,
    special_method,
)
from framesmith_dynamo.values.lookup.libraries import is_library_entry, is_trusted
from framesmith_dynamo.values.lookup.static import type_lookup, user_method
from framesmith_dynamo.values.objects.attributes import (
    CLASS_ATTRIBUTE,
    CMethodValue,
    bind_entry,
    bind_through_class,
    class_value,
)
from framesmith_dynamo.values.wrap_registry import Family, build, builds_family, wraps_family
from framesmith_guards import AttrSource, ItemSource, SubclassesSource
from framesmith_guards.values.classes import IMMUTABLE_TYPE

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source

CLASS_MUTATION = register_break(
    "class-mutation",
    what="an attribute of a class is set or deleted",
    why="only plain data of the program's classes may be replaced by other plain data: otherwise look-ups change",
    hint="set it outside the compiled function",
)
CONSTRUCTION = register_break(
    "object-construction",
    what="an object of this class cannot be made while tracing",
    why="its layout or its constructor is implemented in C and the tracer has no rule for it",
    hint="make the object outside the compiled function and pass it in",
)

CLASS_DEFINITION = register_break(
    "class-definition",
    what="a class is made while tracing",
    why="making a class runs metaclass code and creates a lasting object",
    hint="define the class outside the compiled function",
)

#: Attributes of every class that C code computes.
COMPUTED = frozenset({"__name__", "__qualname__", "__module__", "__mro__", "__base__", "__bases__", "__doc__"}) | (
    {"__type_params__"} & vars(type).keys()
)

#: Methods that make an entry of a class more than plain data.
ACCESS = ("__get__", "__set__", "__delete__")

Constructor = Callable[[Tracer, "ClassValue", Args, Kwargs], Value]

#: Constructors of families of classes, tried in order: (predicate, constructor). For one class: `handles`.
CLASS_FAMILIES: list[tuple[Callable[[type], bool], Constructor]] = []


def constructs_family(accepts: Callable[[type], bool]) -> Callable[[Constructor], Constructor]:
    """Register the constructor for the classes of a family; earlier registrations are tried first."""

    def enter(constructor: Constructor) -> Constructor:
        CLASS_FAMILIES.append((accepts, constructor))
        return constructor

    return enter


class ClassValue(Value):
    """A class, known by identity."""

    python_types = (type,)
    __slots__ = ("cls",)
    exact_operators = True

    def __init__(self, cls: type, *, source: Source | None = None) -> None:
        super().__init__(source=source)
        self.cls = cls

    def python_type(self) -> type:
        return type(self.cls)

    def describe(self) -> str:
        return f"class {self.cls.__module__}.{self.cls.__qualname__}"

    def is_constant(self) -> bool:
        return True

    def as_constant(self) -> type:
        return self.cls

    def as_proxy(self) -> type:
        return self.cls

    def hash_key(self, tr: Tracer) -> object:
        return self.cls

    def bool_(self, tr: Tracer) -> bool:
        if user_method(type(self.cls), "__bool__") or user_method(type(self.cls), "__len__"):
            self.unsupported("truth testing")
        return True

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if op not in ("==", "!=") or user_method(type(self.cls), "__eq__") is not None:
            return None
        same = isinstance(other, ClassValue) and other.cls is self.cls
        return tr.constant(same == (op == "==")) if isinstance(other, ClassValue) or other.can_be_constant() else None

    def binary_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if op == "|" and other.can_be_constant() and not isinstance(other.as_constant(), int):
            try:
                return build(tr, self.cls | other.as_constant())
            except TypeError:
                return None
        return None

    def getitem(self, tr: Tracer, key: Value) -> Value:
        found = type_lookup(self.cls, "__class_getitem__")
        if found is not None and isinstance(found.raw, classmethod) and not is_trusted(found.owner.__module__):
            return tr.call(self.getattr_(tr, "__class_getitem__"), (key,), {})
        if user_method(type(self.cls), "__getitem__") is None and (key.can_be_constant() or self._takes_lists(key)):
            return fold(tr, operator.getitem, (self, key))
        return self._meta_special(tr, "__getitem__", key)

    def _takes_lists(self, key: Value) -> bool:
        """Whether the key is one of `Callable[[X], Y]`, which stores the classes in the list, and not the list."""
        alias: Any = Callable
        return self.cls is alias and key.python_type() is tuple

    def _meta_special(self, tr: Tracer, name: str, *args: Value) -> Value:
        method = self._meta_method(tr, name)
        if method is None:
            self.unsupported(name)
        return tr.call(method, (self, *args), {})

    def _meta_method(self, tr: Tracer, name: str) -> Value | None:
        """The Python function that the metaclass has for a special method; None is guarded."""
        if type(self.cls) is type:
            return None
        self._find(tr)
        guard_class(tr, type(self.cls), self.source)
        return special_method(tr, self, name)

    def _find(self, tr: Tracer) -> None:
        """Guard the class's source, before anything mutable is read."""
        if self.source is None:
            self.source = class_source(tr, self.cls)

    def iter_(self, tr: Tracer) -> Value:
        return iterator(tr, self, self._meta_special(tr, "__iter__"))

    def len_(self, tr: Tracer) -> Value:
        return answered(tr, len, "__len__", self, self._meta_special(tr, "__len__"))

    def contains(self, tr: Tracer, item: Value) -> Value:
        return tr.constant(self._meta_special(tr, "__contains__", item).bool_(tr))

    # Attributes

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name in COMPUTED:
            return self._computed(tr, name)
        if name == "__flags__":
            return tr.constant(self.cls.__flags__)
        if name == "__class__":
            self._find(tr)
            return class_value(tr, type(self.cls), self.source)
        if name == "__dict__":
            return class_proxy(tr, self.cls)
        if self._meta_method(tr, "__getattribute__") is not None:
            raise GraphBreak(CLASS_ATTRIBUTE, f"{name!r} of {self.describe()}")
        meta = type_lookup(type(self.cls), name)
        if meta is not None and read_first_check(tr, type(self.cls), meta, name, self.source):
            return bind_entry(tr, meta, name, self)
        guard_class(tr, self.cls, self.source)
        found = type_lookup(self.cls, name)
        if found is not None:
            return bind_through_class(tr, found, name, self, self.cls)
        if meta is not None:
            return bind_entry(tr, meta, name, self)
        fallback = self._meta_method(tr, "__getattr__")
        if fallback is not None:
            return tr.call(fallback, (self, tr.constant(name)), {})
        return tr.raise_(AttributeError, f"type object '{self.cls.__name__}' has no attribute '{name}'")

    def _computed(self, tr: Tracer, name: str) -> Value:
        value = type.__getattribute__(self.cls, name)
        if self.cls.__flags__ & IMMUTABLE_TYPE:
            return build(tr, value)
        self._find(tr)
        if self.source is None:
            raise GraphBreak(NO_SOURCE, self.describe())
        return tr.wrap(value, AttrSource(self.source, name))

    def setattr_(self, tr: Tracer, name: str, value: Value) -> None:
        found = type_lookup(self.cls, name)
        if found is None or not self._replaces_data(tr, found, name, value):
            raise GraphBreak(CLASS_MUTATION, f"setting {name!r} of {self.describe()}")
        self._find(tr)
        if self.mutation is None:
            tr.journal.track_existing(self, self.cls)
        tr.journal.store_attr(self, name, value)

    def _replaces_data(self, tr: Tracer, found: Found, name: str, value: Value) -> bool:
        """Whether a store only replaces plain data of a user's class by plain data, which changes no look-up."""
        if found.owner is not self.cls or is_trusted(self.cls.__module__) or name.startswith("__"):
            return False
        setter = type_lookup(type(self.cls), "__setattr__")
        if setter is None or setter.owner is not type or type_lookup(type(self.cls), name) is not None:
            return False
        kind = value.python_type()
        guard_class(tr, self.cls, self.source)
        guard_class(tr, kind)
        is_data = all(type_lookup(kind, slot) is None for slot in ACCESS)
        return is_data and not slot_check(tr, self.cls, found, name, None, *ACCESS)

    def delattr_(self, tr: Tracer, name: str) -> None:
        raise GraphBreak(CLASS_MUTATION, f"deleting {name!r} of {self.describe()}")

    def call_c_method(self, tr: Tracer, found: Found, name: str, args: Args, kwargs: Kwargs) -> Value:
        """Methods of `type` implemented in C."""
        if name == "__call__":
            return self.instantiate(tr, args, kwargs)
        if name in ("mro", "__instancecheck__", "__subclasscheck__") and all(arg.can_be_constant() for arg in args):
            return build(tr, found.raw(self.cls, *(arg.as_constant() for arg in args)))
        if name == "__subclasses__" and not args and not kwargs:
            return self._subclasses(tr)
        raise GraphBreak(CLASS_ATTRIBUTE, f"{name}() of {self.describe()}")

    def _subclasses(self, tr: Tracer) -> Value:
        """Return a new list of the subclasses, guarded."""
        self._find(tr)
        if self.source is None:
            raise GraphBreak(NO_SOURCE, self.describe())
        source = SubclassesSource(self.source)
        found: list[type] = type.__subclasses__(self.cls)
        tr.guard(source, "LENGTH", len(found))
        return new_list(tr, [tr.wrap(cls, ItemSource(source, index)) for index, cls in enumerate(found)])

    # Construction

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        handler = find_handler(self.cls)
        if handler is not None:
            return handler(tr, args, kwargs)
        constructor = next((row for accepts, row in CLASS_FAMILIES if accepts(self.cls)), None)
        if constructor is not None:
            return constructor(tr, self, args, kwargs)
        if issubclass(self.cls, type):
            raise GraphBreak(CLASS_DEFINITION, self.describe())
        meta_call = self._meta_method(tr, "__call__")
        if meta_call is not None:
            return tr.call(meta_call, (self, *args), kwargs)
        found = type_lookup(type(self.cls), "__call__")
        if found is not None and not isinstance(found.raw, WrapperDescriptorType):  # a TypedDict's is dict
            return tr.call(bind_entry(tr, found, "__call__", self), args, kwargs)
        return self.instantiate(tr, args, kwargs)

    def instantiate(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        """`type.__call__`: `__new__`, then `__init__` if it returned an object of the class."""
        guard_class(tr, self.cls, self.source)
        made = self.make(tr, args, kwargs)
        if issubclass(made.python_type(), self.cls):
            init, new = (type_lookup(made.python_type(), name) for name in ("__init__", "__new__"))
            assert init is not None and new is not None
            if isinstance(init.raw, FunctionType):
                made.call_method(tr, "__init__", args, kwargs)
            elif init.owner is not object or new.owner is object:  # object's accepts the arguments of another `__new__`
                CMethodValue(made, init, "__init__").call(tr, args, kwargs)
        return made

    def make(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        """`cls.__new__(cls, *args, **kwargs)`."""
        found = type_lookup(self.cls, "__new__")
        assert found is not None
        if isinstance(found.raw, staticmethod):
            function = entry_value(tr, self.cls, found, "__new__", None, "__func__")
            return tr.call(function, (self, *args), kwargs)
        return make_new(tr, self.cls, found.owner, args, kwargs)

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None and not is_library_entry(self.source):
            super().reconstruct(codegen)
        else:
            codegen.load_const(self.cls)


def make_new(tr: Tracer, cls: type, owner: type, args: Args, kwargs: Kwargs) -> Value:
    """Return an object of `cls` by the `__new__` of its base `owner`, which is implemented in C."""
    maker = C_METHODS.get((owner, "__new__"))
    if maker is None and issubclass(owner, BaseException):
        maker = C_METHODS[BaseException, "__new__"]
    if maker is None:
        raise GraphBreak(CONSTRUCTION, f"{cls.__module__}.{cls.__qualname__}")
    return maker(tr, cls, args, kwargs)


def _is_class(obj: Any) -> bool:
    return issubclass(type(obj), type)


@wraps_family(Family.CLASS, _is_class)
def wrap_class(tr: Tracer, obj: type, source: Source) -> Value:
    """Wrap a class found at a source, guarded by identity."""
    tr.guard(source, "ID_MATCH", obj)
    tr.facts.class_sources.setdefault(obj, library_path(tr, obj) or source)
    value = _build_class(tr, obj)
    if value.source is None:
        value.source = source
    return value


def _build_class(tr: Tracer, obj: type) -> Value:
    """Return the one value of a class; its source is guarded when something is read of it."""
    if obj not in tr.facts.classes:
        tr.facts.classes[obj] = ClassValue(obj)
    return tr.facts.classes[obj]


builds_family(Family.CLASS, _is_class)(_build_class)
