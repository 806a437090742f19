"""Python functions: found at a source, known, or defined while tracing. Calls are inlined."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Sequence
from types import CellType, CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final

from framesmith_dynamo.admission.frame_policy import patched_by_torch, wrapped_by_torch
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.torch_switches import decorators
from framesmith_dynamo.values import namespaces, torch_decorators
from framesmith_dynamo.values.attribute_dicts.owners import note_instance_dict
from framesmith_dynamo.values.base import Args, Kwargs, TracedRaise, Tracer, Value
from framesmith_dynamo.values.bound_method import BuiltinMethodValue
from framesmith_dynamo.values.callables import find_handler
from framesmith_dynamo.values.constants.constant import ConstantValue
from framesmith_dynamo.values.constants.lazy_types import only_names
from framesmith_dynamo.values.containers import TupleValue, new_dict
from framesmith_dynamo.values.errors import refuse_positional
from framesmith_dynamo.values.functions.binding import Default, bind
from framesmith_dynamo.values.functions.cells import CellValue
from framesmith_dynamo.values.lookup.entries import value_at, value_by_name
from framesmith_dynamo.values.lookup.libraries import is_library_entry, is_settled
from framesmith_dynamo.values.wrap_registry import builds_type, wraps_type
from framesmith_guards import AttrSource, InstanceDictSource, ItemSource
from framesmith_sideeffects import DELETED

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source

GENERATOR_FUNCTION = register_break(
    "coroutine-call",
    what="a coroutine function or an asynchronous generator is called",
    why="its body runs in an event loop, not inside this call",
    hint="call it outside the compiled function",
)
FUNCTION_ATTRIBUTE = register_break(
    "function-attribute",
    what="an attribute of a function object cannot be followed",
    why="the tracer knows only the attributes that the language defines and plain ones",
    hint="store the data in another object",
)

#: The function that makes the annotations, where they are deferred.
ANNOTATE: Final = "__annotate__"
#: Attributes that the setting of another one clears.
_EXCLUDES: Final = {"__annotations__": ANNOTATE, ANNOTATE: "__annotations__"} if hasattr(FunctionType, ANNOTATE) else {}
#: Attributes of every function that C code computes.
_COMPUTED = tuple(
    name
    for name in (*functools.WRAPPER_ASSIGNMENTS, "__annotations__", "__defaults__", "__kwdefaults__")
    if name in vars(FunctionType)
)


class FunctionValue(Value):
    """A Python function: `function` is one that exists, or a stand-in with the same code and globals."""

    python_types = (FunctionType,)
    exact_operators = True
    __slots__ = ("cells", "defaults", "function", "kwdefaults", "made")

    def __init__(self, function: FunctionType, *, source: Source | None = None) -> None:
        super().__init__(source=source)
        self.function = function
        self.made = False
        self.defaults: tuple[Value, ...] | None = None
        self.kwdefaults: dict[str, Value] | None = None
        self.cells: tuple[CellValue, ...] | None = None

    @staticmethod
    def make(
        tr: Tracer,
        code: CodeType,
        function_globals: dict[str, Any],
        *,
        qualname: str | None = None,
        **parts: Any,
    ) -> FunctionValue:
        """Return the function that MAKE_FUNCTION creates in the trace, with parts as in `set_part`."""
        stand_in = FunctionType(code, function_globals, code.co_name, None, tuple(CellType() for _ in code.co_freevars))
        if qualname is not None:
            stand_in.__qualname__ = qualname
        value = FunctionValue(stand_in)
        value.made = True
        value.defaults, value.kwdefaults, value.cells = (), {}, ()
        tr.journal.track_new(value, FunctionType)
        for part, given in parts.items():
            value.set_part(tr, part, given)
        return value

    def set_part(self, tr: Tracer, part: str, given: Any) -> None:
        """Set a part of a function made in the trace, as SET_FUNCTION_ATTRIBUTE does. Annotations as in `annotate`."""
        if part == "annotations":
            self.annotate(tr, given)
        elif part == "annotate":
            tr.journal.store_attr(self, ANNOTATE, given)
        elif part == "kwdefaults":
            self.kwdefaults = given
        elif part == "defaults":
            self.defaults = tuple(given)
        else:
            self.cells = tuple(given)

    def annotate(self, tr: Tracer, annotations: Sequence[Value]) -> Value:
        """Set the annotations of a function made in the trace, given as names and values in turn."""
        made = new_dict(tr, zip(annotations[::2], annotations[1::2], strict=True))
        tr.journal.store_attr(self, "__annotations__", made)
        return made

    @property
    def is_new(self) -> bool:
        return self.made

    def describe(self) -> str:
        return f"function {self.function.__qualname__}"

    def is_constant(self) -> bool:
        return not self.is_new

    def as_constant(self) -> Any:
        return super().as_constant() if self.is_new else self.function

    def as_proxy(self) -> Any:
        return super().as_proxy() if self.is_new else self.function

    def hash_key(self, tr: Tracer) -> object:
        self.guard_identity(tr)
        return self if self.is_new else self.function

    def guard_identity(self, tr: Tracer) -> None:
        if self.source is not None:
            tr.guard(self.source, "ID_MATCH", self.function)

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if op not in ("==", "!="):
            return None
        if other is not self and isinstance(other, FunctionValue):
            self.guard_identity(tr)
            other.guard_identity(tr)
        same = other is self or (
            isinstance(other, FunctionValue) and not self.is_new and other.function is self.function
        )
        return tr.constant(same == (op == "=="))

    # Attributes of the function

    def get_cells(self, tr: Tracer) -> tuple[CellValue, ...]:
        """Return one cell value for each free variable, in order; the same cell object has one value."""
        if self.cells is None:
            found = [
                tr.wrap(cell, ItemSource(self._part("__closure__"), i))
                for i, cell in enumerate(self.function.__closure__ or ())
            ]
            self.cells = tuple(cell for cell in found if isinstance(cell, CellValue))
        return self.cells

    @property
    def where(self) -> Source:
        """Return the source of an existing function."""
        assert self.source is not None, f"{self.describe()} exists, and so has a source"
        return self.source

    def _part(self, name: str) -> Source:
        return AttrSource(self.where, name)

    def default_makers(self, tr: Tracer) -> dict[str, Default]:
        """Return, for each parameter with a default, a function that returns the default's value."""
        code = self.function.__code__
        names = code.co_varnames[: code.co_argcount]
        count = len(self.defaults if self.defaults is not None else self.function.__defaults__ or ())
        makers: dict[str, Default] = {
            name: functools.partial(self._default, tr, i) for i, name in enumerate(names[len(names) - count :])
        }
        for name in self.kwdefaults if self.kwdefaults is not None else self.function.__kwdefaults__ or ():
            makers[name] = functools.partial(self._kwdefault, tr, name)
        return makers

    def guard_defaults(self, tr: Tracer) -> None:
        """Guard which parameters have defaults."""
        if self.is_new or is_settled(self._part("__defaults__")):
            return
        for part, kind, of in (("__defaults__", "LENGTH", len), ("__kwdefaults__", "DICT_KEYS", tuple)):
            found = getattr(self.function, part)
            if found is None:
                tr.guard(self._part(part), "NONE_MATCH")
            else:
                tr.guard(self._part(part), kind, of(found))

    def guard_absence(self, tr: Tracer, name: str) -> None:
        """Guard that the function has no such attribute of its own; a library's is assumed not to get one."""
        if not self.is_new and not is_library_entry(self.where) and not is_settled(self.where):
            note_instance_dict(tr, self)
            tr.guard(InstanceDictSource(self.where), "DICT_NOT_CONTAINS", name)

    def _default(self, tr: Tracer, index: int) -> Value:
        if self.defaults is not None:
            return self.defaults[index]
        defaults = self.function.__defaults__ or ()
        return value_at(tr, defaults[index], ItemSource(self._part("__defaults__"), index - len(defaults)))

    def _kwdefault(self, tr: Tracer, name: str) -> Value:
        if self.kwdefaults is not None:
            return self.kwdefaults[name]
        defaults = self.function.__kwdefaults__ or {}
        return value_at(tr, defaults[name], ItemSource(self._part("__kwdefaults__"), name))

    # Python's data model

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        if not self.is_new:
            inner = self._patched_by_torch_compile(tr)
            if inner is not None:
                return tr.call(inner, args, kwargs)
            answered = self._call_marked(tr, args, kwargs)
            if answered is not None:
                return answered
            handler = find_handler(self.function)
            if handler is not None:
                return handler(tr, args, kwargs)
            namespaces.note_owner(tr, self.function.__globals__, self.where)
        return self.interpret(tr, args, kwargs)

    def interpret(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        """Bind the arguments and inline the body, without looking for a handler."""
        code = self.function.__code__
        if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            raise GraphBreak(GENERATOR_FUNCTION, self.describe())
        try:
            bound = bind(tr, code, self.function.__qualname__, args, kwargs, self.default_makers(tr))
        except TracedRaise:
            self.guard_defaults(tr)
            raise
        return tr.inline(self.function, bound, self.get_cells(tr))

    def _patched_by_torch_compile(self, tr: Tracer) -> Value | None:
        """Return the function of torch that torch.compile has wrapped in this one, or None."""
        attribute = wrapped_by_torch(self.function)
        if attribute is not None:
            return value_at(tr, vars(self.function)[attribute], self._part(attribute))
        cell = patched_by_torch(self.function)
        return None if cell is None else self.get_cells(tr)[cell].load(tr)

    def _call_marked(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value | None:
        """Call a function marked by torch's decorators; None for others."""
        handler = torch_decorators.handler_of(self.function)
        if handler is not None:
            self.guard_identity(tr)
            return handler(tr, args, kwargs)
        if decorators.is_nested_region(self.function):
            inner = value_at(tr, self.function.__dict__[decorators.NESTED_REGION], self._part(decorators.NESTED_REGION))
            return tr.call_region(inner, args, kwargs)
        return None

    def call_method(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name != "__get__" or kwargs or not args:
            return super().call_method(tr, name, args, kwargs)
        unbound = args[0].is_none()
        return self if unbound else MethodValue(self, args[0])

    def getattr_(self, tr: Tracer, name: str) -> Value:
        pending = tr.journal.load_attr(self, name)
        if pending is DELETED:
            tr.raise_(AttributeError, f"'function' object has no attribute '{name}'")
        if pending is not None:
            return pending
        if name == "__annotations__":
            self.evaluate_annotations(tr)
        if name == "__code__":
            return tr.constant(self.function.__code__)
        if name in _COMPUTED and self.is_new:
            return self._own_part(tr, name)
        if name in _COMPUTED:
            return value_at(tr, getattr(self.function, name), self._part(name))
        if not self.is_new and name in self.function.__dict__:
            note_instance_dict(tr, self)
            return value_at(tr, getattr(self.function, name), self._part(name))
        special = _SPECIAL.get(name)
        if special is not None:
            return special(tr, self)
        if hasattr(FunctionType, name):
            raise GraphBreak(FUNCTION_ATTRIBUTE, f"{name!r} of {self.describe()}")
        self.guard_absence(tr, name)
        return tr.raise_(AttributeError, f"'function' object has no attribute '{name}'")

    def evaluate_annotations(self, tr: Tracer) -> None:
        """Evaluate deferred annotations, as their first reader does; Python keeps them.

        Raises GraphBreak where that calls the program's code, depends on changes that are pending, or fails.
        """
        annotate = getattr(self.function, ANNOTATE, None)
        if annotate is None and tr.journal.load_attr(self, ANNOTATE) is None:
            return
        pending = self.mutation is not None or tr.journal.pending_globals(self.function.__globals__)
        if self.is_new or pending or not only_names(annotate):
            raise GraphBreak(FUNCTION_ATTRIBUTE, f"deferred annotations of {self.describe()}")
        try:
            getattr(self.function, "__annotations__")  # noqa: B009
        except Exception as error:
            raise GraphBreak(FUNCTION_ATTRIBUTE, f"annotations of {self.describe()}: {error}") from None

    def _own_part(self, tr: Tracer, name: str) -> Value:
        if name == "__annotations__":
            return self.annotate(tr, ())
        if name == "__defaults__" and self.defaults:
            return TupleValue(self.defaults)
        if name == "__kwdefaults__" and self.kwdefaults:
            raise GraphBreak(FUNCTION_ATTRIBUTE, f"{name!r} of {self.describe()}")
        return tr.constant(getattr(self.function, name))

    def setattr_(self, tr: Tracer, name: str, value: Value) -> None:
        if name in ("__code__", "__defaults__", "__kwdefaults__", "__dict__"):
            raise GraphBreak(FUNCTION_ATTRIBUTE, f"setting {name!r} of {self.describe()}")
        if name in _EXCLUDES and self._clears(tr, _EXCLUDES[name]):
            raise GraphBreak(FUNCTION_ATTRIBUTE, f"setting {name!r} of {self.describe()}")
        if not issubclass(value.python_type(), _TYPES.get(name, object)):
            refuse_positional(tr, setattr, self, tr.constant(name), value)
        if self.mutation is None:
            note_instance_dict(tr, self)
            tr.journal.track_existing(self, self.function)
        if name == "__annotations__" and value.python_type() is type(None):
            value = new_dict(tr)
        tr.journal.store_attr(self, name, value)

    def _clears(self, tr: Tracer, other: str) -> bool:
        """Whether setting an attribute may clear the other one of `_EXCLUDES`."""
        if self.is_new:
            return tr.journal.load_attr(self, other) is not None
        return other != ANNOTATE or self.mutation is not None or getattr(self.function, ANNOTATE) is not None

    def entries(self) -> dict[str, Any] | None:
        """The function's `__dict__`; None for one made in the trace."""
        return None if self.is_new else self.function.__dict__

    def own_attributes(self, tr: Tracer) -> list[tuple[str, Value]]:
        """Return the contents of the function's `__dict__`, whose names are guarded."""
        found = () if self.is_new else tuple(self.function.__dict__)
        if not self.is_new and not is_library_entry(self.where) and not is_settled(self.where):
            note_instance_dict(tr, self)
            tr.guard(InstanceDictSource(self.where), "DICT_KEYS", found)
        pending = tr.journal.pending_attrs(self)
        names = [name for name in found if pending.get(name) is not DELETED]
        names += [name for name in pending if name not in found and name not in vars(FunctionType)]
        return [(name, self.getattr_(tr, name)) for name in names]

    # Reconstruction

    def referents(self) -> Iterable[Value]:
        if not self.is_new:
            return ()
        return (*(self.defaults or ()), *(self.kwdefaults or {}).values(), *(self.cells or ()))

    def reconstruct(self, codegen: Codegen) -> None:
        if not self.is_new:
            if is_library_entry(self.where):
                codegen.load_const(self.function)
            else:
                super().reconstruct(codegen)
            return
        codegen.push_function(build_function)
        codegen.load_const(self.function)
        for part in (self.defaults or (), tuple((self.kwdefaults or {}).values()), self.cells or ()):
            for value in part:
                codegen(value)
            codegen.build("tuple", len(part))
        codegen.load_const(tuple(self.kwdefaults or {}))
        codegen.call(5)


def build_function(
    stand_in: FunctionType,
    defaults: tuple[Any, ...],
    kwdefaults: tuple[Any, ...],
    cells: tuple[Any, ...],
    kwnames: tuple[str, ...],
) -> FunctionType:
    """Called by compiled code: return a new function like `stand_in`, with the call's own defaults and cells."""
    made = FunctionType(stand_in.__code__, stand_in.__globals__, stand_in.__name__, defaults or None, cells)
    made.__qualname__ = stand_in.__qualname__
    made.__kwdefaults__ = dict(zip(kwnames, kwdefaults, strict=True)) or None
    return made


def _binding(tr: Tracer, self: FunctionValue) -> Value:
    return BuiltinMethodValue(self, "__get__")


def _type_of(tr: Tracer, self: FunctionValue) -> Value:
    return tr.constant(FunctionType)


#: The types that C code accepts for attributes of a function.
_TYPES: dict[str, tuple[type, ...]] = {
    "__name__": (str,),
    "__qualname__": (str,),
    "__annotations__": (dict, type(None)),
    "__type_params__": (tuple,),
}
_SPECIAL = {"__get__": _binding, "__class__": _type_of}


class MethodValue(Value):
    """A bound method: any callable value with its first argument."""

    python_types = (MethodType,)
    exact_operators = True
    __slots__ = ("function", "owner")

    def __init__(self, function: Value, owner: Value, *, source: Source | None = None) -> None:
        super().__init__(source=source)
        self.function = function
        self.owner = owner

    def describe(self) -> str:
        return f"method {self.function.describe()} of {self.owner.describe()}"

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        return tr.call(self.function, (self.owner, *args), kwargs)

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.owner
        if name == "__func__":
            return self.function
        if name == "__class__":
            return tr.constant(MethodType)
        return self.function.getattr_(tr, name)

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if op not in ("==", "!=") or not isinstance(other, MethodValue):
            return None
        same = other.owner is self.owner and other.function is self.function
        return tr.constant(same == (op == "=="))

    def hash_key(self, tr: Tracer) -> object:
        return (MethodValue, self.function.hash_key(tr), id(self.owner))

    def referents(self) -> Iterable[Value]:
        return (self.function, self.owner)

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.push_call(build_method, (self.function, self.owner))


def build_method(function: Any, owner: Any) -> MethodType:
    """Called by compiled code: return a bound method; a classmethod may have bound what cannot be called."""
    if callable(function):
        return MethodType(function, owner)
    bind: Any = classmethod(function).__get__
    made: MethodType = bind(None, owner)
    return made


@wraps_type(FunctionType)
def wrap_function(tr: Tracer, obj: FunctionType, source: Source) -> Value:
    """Wrap a Python function: guarded by its code object, a library's by its identity, which includes its parts."""
    if is_library_entry(source):
        tr.guard(source, "ID_MATCH", obj)
    else:
        tr.guard(source, "TYPE_MATCH", FunctionType)
        tr.guard(source, "FUNCTION_CODE", obj.__code__)
    return FunctionValue(obj, source=source)


@wraps_type(MethodType)
def wrap_method(tr: Tracer, obj: MethodType, source: Source) -> Value:
    """Wrap a bound method object: its function and its owner have guards of their own."""
    tr.guard(source, "TYPE_MATCH", MethodType)
    function = tr.wrap(obj.__func__, AttrSource(source, "__func__"))
    return MethodValue(function, tr.wrap(obj.__self__, AttrSource(source, "__self__")), source=source)


builds_type(FunctionType)(value_by_name)


@builds_type(CodeType)
def _build_code(tr: Tracer, obj: CodeType) -> Value:
    return ConstantValue(obj)
