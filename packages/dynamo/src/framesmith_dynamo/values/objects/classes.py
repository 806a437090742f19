"""Classes as values: attributes through the metaclass, calls that make objects by interpreting `__new__` and
`__init__`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.constants.constant import BUILD_PROTOCOLS, build, fold
from framesmith_dynamo.values.functions.functions import MethodValue
from framesmith_dynamo.values.known import known
from framesmith_dynamo.values.lookup import Found, has_slot, is_data_descriptor, is_trusted, type_lookup, user_method
from framesmith_dynamo.values.objects.attributes import CMethodValue, class_source, guard_class, source_in_class
from framesmith_dynamo.values.pins import pin
from framesmith_dynamo.values.stability import is_stable
from framesmith_dynamo.values.wrap_registry import wraps_protocol
from framesmith_guards import AttrSource

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source

CLASS_MUTATION = register_break(
    "class-mutation",
    what="an attribute of a class is set or deleted",
    why="every object of the class would change while the trace has already read some of them",
    hint="do it outside the compiled function",
)
CLASS_ATTRIBUTE = register_break(
    "class-attribute",
    what="an attribute of a class is computed by code the tracer cannot follow",
    why="its metaclass or a descriptor written in C computes it",
    hint="read the attribute outside the compiled function",
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

#: Attributes of every class that C code computes and that do not change.
FOLDED = frozenset(
    {"__name__", "__qualname__", "__module__", "__mro__", "__base__", "__bases__", "__doc__", "__flags__"}
)

Constructor = Callable[[Tracer, "ClassValue", Args, Kwargs], Value]
#: What calling a class means, by class; asked along the MRO of the called class only for the class itself.
CONSTRUCTORS: dict[type, Constructor] = {}
#: Families of classes, asked in order: (predicate, constructor).
CONSTRUCTOR_PROTOCOLS: list[tuple[Callable[[type], bool], Constructor]] = []


def constructs(*classes: type) -> Callable[[Constructor], Constructor]:
    """Register what calling exactly these classes means."""

    def register(constructor: Constructor) -> Constructor:
        for cls in classes:
            CONSTRUCTORS[cls] = constructor
        return constructor

    return register


def constructs_family(accepts: Callable[[type], bool]) -> Callable[[Constructor], Constructor]:
    """Register what calling the classes of a family means; earlier registrations are asked first."""

    def register(constructor: Constructor) -> Constructor:
        CONSTRUCTOR_PROTOCOLS.append((accepts, constructor))
        return constructor

    return register


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
            self.refuse("truth testing")
        return True

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if op not in ("==", "!=") or user_method(type(self.cls), "__eq__") is not None:
            return None
        same = isinstance(other, ClassValue) and other.cls is self.cls
        return tr.constant(same == (op == "==")) if isinstance(other, ClassValue) or other.is_constant() else None

    def binary_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if op == "|" and other.is_constant() and not isinstance(other.as_constant(), int):
            try:
                return build(tr, self.cls | other.as_constant())
            except TypeError:
                return None
        return None

    def getitem(self, tr: Tracer, key: Value) -> Value:
        found = type_lookup(self.cls, "__class_getitem__")
        if found is not None and isinstance(found.raw, classmethod) and not is_trusted(found.owner.__module__):
            return tr.call(self.getattr_(tr, "__class_getitem__"), (key,), {})
        if user_method(type(self.cls), "__getitem__") is None and key.is_constant():
            return fold(tr, operator.getitem, (self, key))
        return self._meta_special(tr, "__getitem__", key)

    def _meta_special(self, tr: Tracer, name: str, *args: Value) -> Value:
        method = user_method(type(self.cls), name)
        if method is None:
            self.refuse(name)
        return tr.call(tr.constant(method), (self, *args), {})

    def iter_(self, tr: Tracer) -> Value:
        return self._meta_special(tr, "__iter__")

    def len_(self, tr: Tracer) -> Value:
        return self._meta_special(tr, "__len__")

    def contains(self, tr: Tracer, item: Value) -> Value:
        return self._meta_special(tr, "__contains__", item)

    # Attributes

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name in FOLDED:
            return build(tr, type.__getattribute__(self.cls, name))
        if name == "__class__":
            return tr.constant(type(self.cls))
        if name == "__dict__":
            return build(tr, type.__dict__["__dict__"].__get__(self.cls))
        if user_method(type(self.cls), "__getattribute__") is not None:
            raise GraphBreak(CLASS_ATTRIBUTE, f"{name!r} of {self.describe()}")
        meta = type_lookup(type(self.cls), name)
        if meta is not None and is_data_descriptor(meta.raw):
            return self._from_meta(tr, meta, name)
        found = type_lookup(self.cls, name)
        if found is not None:
            return self._from_class(tr, found, name)
        if meta is not None:
            return self._from_meta(tr, meta, name)
        getattr_ = user_method(type(self.cls), "__getattr__")
        if getattr_ is not None:
            return tr.call(tr.constant(getattr_), (self, tr.constant(name)), {})
        return tr.raise_(AttributeError, f"type object '{self.cls.__name__}' has no attribute '{name}'")

    def _where(self, tr: Tracer) -> Source | None:
        """Where the class itself is found."""
        return self.source if self.source is not None else class_source(tr, self.cls, None)

    def _attribute_source(self, tr: Tracer, name: str) -> Source | None:
        base = self._where(tr)
        return AttrSource(base, name) if base is not None else None

    def _from_class(self, tr: Tracer, found: Found, name: str) -> Value:
        guard_class(tr, self.cls, None)
        raw, stable = found.raw, is_trusted(found.owner.__module__)
        if stable:
            pin(tr, found.owner, name, raw)
        source = self._attribute_source(tr, name)
        if isinstance(raw, classmethod):
            function_source = AttrSource(source, "__func__") if source is not None else None
            return MethodValue(known(tr, raw.__func__, function_source, stable=stable), self)
        if isinstance(raw, staticmethod):
            return known(tr, raw.__func__, source, stable=stable)
        if isinstance(raw, FunctionType) or not has_slot(raw, "__get__"):
            return known(tr, raw, source, stable=stable)
        descriptor_source = source_in_class(self._where(tr), self.cls, found, name)
        getter = user_method(type(raw), "__get__")
        if getter is not None:
            descriptor = known(tr, raw, descriptor_source, stable=stable)
            return tr.call(tr.constant(getter), (descriptor, tr.constant(None), self), {})
        result = type.__getattribute__(self.cls, name)
        return known(tr, raw, descriptor_source, stable=stable) if result is raw else build(tr, result)

    def _from_meta(self, tr: Tracer, meta: Found, name: str) -> Value:
        raw = meta.raw
        if isinstance(raw, FunctionType):
            return MethodValue(tr.constant(raw), self)
        if isinstance(raw, property) and raw.fget is not None:
            return tr.call(tr.constant(raw.fget), (self,), {})
        if not has_slot(raw, "__get__"):
            return known(tr, raw, None, stable=True)
        if callable(raw):
            return CMethodValue(self, meta, name)
        raise GraphBreak(CLASS_ATTRIBUTE, f"{name!r} of {self.describe()}")

    def setattr_(self, tr: Tracer, name: str, value: Value) -> None:
        raise GraphBreak(CLASS_MUTATION, f"setting {name!r} of {self.describe()}")

    def delattr_(self, tr: Tracer, name: str) -> None:
        raise GraphBreak(CLASS_MUTATION, f"deleting {name!r} of {self.describe()}")

    def call_c_method(self, tr: Tracer, found: Found, name: str, args: Args, kwargs: Kwargs) -> Value:
        """Methods of `type` implemented in C."""
        if name == "__call__":
            return self.instantiate(tr, args, kwargs)
        if name in ("mro", "__instancecheck__", "__subclasscheck__") and all(arg.is_constant() for arg in args):
            return build(tr, found.raw(self.cls, *(arg.as_constant() for arg in args)))
        raise GraphBreak(CLASS_ATTRIBUTE, f"{name}() of {self.describe()}")

    # Construction

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        constructor = CONSTRUCTORS.get(self.cls)
        if constructor is None:
            constructor = next((row for accepts, row in CONSTRUCTOR_PROTOCOLS if accepts(self.cls)), None)
        if constructor is not None:
            return constructor(tr, self, args, kwargs)
        if issubclass(self.cls, type):
            raise GraphBreak(CLASS_DEFINITION, self.describe())
        meta_call = user_method(type(self.cls), "__call__")
        if meta_call is not None:
            return tr.call(tr.constant(meta_call), (self, *args), kwargs)
        return self.instantiate(tr, args, kwargs)

    def instantiate(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        """`type.__call__`: `__new__`, then `__init__` when it gave an object of the class."""
        guard_class(tr, self.cls, None)
        made = self.make(tr, args, kwargs)
        if issubclass(made.python_type(), self.cls):
            init = type_lookup(made.python_type(), "__init__")
            assert init is not None
            if isinstance(init.raw, FunctionType):
                made.call_method(tr, "__init__", args, kwargs)
            elif not (init.owner is object and user_method(self.cls, "__new__") is not None):
                CMethodValue(made, init, "__init__").call(tr, args, kwargs)
        return made

    def make(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        """`cls.__new__(cls, *args, **kwargs)`."""
        found = type_lookup(self.cls, "__new__")
        assert found is not None
        if isinstance(found.raw, staticmethod):
            function = known(
                tr, found.raw.__func__, self._attribute_source(tr, "__new__"), stable=is_trusted(found.owner.__module__)
            )
            return tr.call(function, (self, *args), kwargs)
        return make_new(tr, self.cls, found.owner, args, kwargs)

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None:
            super().reconstruct(codegen)
        else:
            codegen.load_const(self.cls)


Maker = Callable[[Tracer, type, Args, Kwargs], Value]
#: C implementations of `__new__`, by the class that has them: an empty object of a subclass.
MAKERS: dict[type, Maker] = {}


def makes(*owners: type) -> Callable[[Maker], Maker]:
    """Register the meaning of `owner.__new__(cls, ...)`."""

    def register(maker: Maker) -> Maker:
        for owner in owners:
            MAKERS[owner] = maker
        return maker

    return register


def make_new(tr: Tracer, cls: type, owner: type, args: Args, kwargs: Kwargs) -> Value:
    """An object of `cls` by the `__new__` of its base `owner`, which is implemented in C."""
    maker = MAKERS.get(BaseException if issubclass(owner, BaseException) else owner)
    if maker is None:
        raise GraphBreak(CONSTRUCTION, f"{cls.__module__}.{cls.__qualname__}")
    return maker(tr, cls, args, kwargs)


def _is_class(obj: Any) -> bool:
    return issubclass(type(obj), type)


@wraps_protocol(_is_class, priority=5)
def wrap_class(tr: Tracer, obj: type, source: Source) -> Value:
    """A class met at a source: the same class at every call."""
    if not is_stable(tr, source):
        tr.guard(source, "ID_MATCH", obj)
    tr.memo.setdefault("class sources", {}).setdefault(obj, source)
    return ClassValue(obj, source=source)


def _build_class(tr: Tracer, obj: type) -> Value:
    memo = tr.memo.setdefault("classes", {})
    if obj not in memo:
        memo[obj] = ClassValue(obj)
    return memo[obj]  # type: ignore[no-any-return]


BUILD_PROTOCOLS.append((_is_class, _build_class))
