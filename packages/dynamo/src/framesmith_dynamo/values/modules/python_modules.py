"""Python module objects (`torch`, `math`, `F`): attribute look-up in the module's dictionary, and stores into it."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values import namespaces
from framesmith_dynamo.values.attribute_dicts.attribute_dict import ModuleDictValue
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.known import KnownValue
from framesmith_dynamo.values.lookup.entries import source_by_name, value_at, value_by_name
from framesmith_dynamo.values.lookup.libraries import is_trusted
from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_dynamo.values.wrap_registry import Family, builds_family, wraps_family
from framesmith_guards import AttrSource, InstanceDictSource

if TYPE_CHECKING:
    from framesmith_guards import Source

MODULE_STORE = register_break(
    "python-module-store",
    what="an attribute of a Python module is set or deleted",
    why="the module is of a class of its own, which may run any code",
    hint="set it outside the compiled function",
)
MODULE_ATTRIBUTE = register_break(
    "python-module-attribute",
    what="a Python module computes an attribute",
    why="the class of the module computes it, and may import or run any code",
    hint="read the attribute once before calling the compiled function, or import the name directly",
)


class PythonModuleValue(KnownValue):
    """A module object, known by identity."""

    python_types = (ModuleType,)
    exact_operators = True
    __slots__ = ()

    @property
    def entries(self) -> namespaces.Entries:
        """The module's own dictionary."""
        return namespaces.dictionary_of(self.obj)

    def describe(self) -> str:
        return f"module {self.obj.__name__}"

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "__dict__":
            return ModuleDictValue(tr, self.entries)
        value = namespaces.load(tr, self.entries, name)
        if value is not None:
            return value
        namespaces.guard_absence(tr, self.entries, name)
        if name == "__class__":
            return tr.constant(type(self.obj))
        if is_trusted(self.entries.get("__name__")):
            return self._computed(tr, name)
        if type(self.obj) is not ModuleType or type_lookup(ModuleType, name) is not None:
            raise GraphBreak(MODULE_ATTRIBUTE, f"{self.obj.__name__}.{name}")
        computes = namespaces.load(tr, self.entries, "__getattr__")
        if computes is not None:
            return tr.call(computes, (tr.constant(name),), {})
        namespaces.guard_absence(tr, self.entries, "__getattr__")
        return tr.raise_(AttributeError, f"module '{self.obj.__name__}' has no attribute '{name}'")

    def _computed(self, tr: Tracer, name: str) -> Value:
        """Return a lazy attribute of a trusted library: its look-up only imports."""
        try:
            value = getattr(self.obj, name)
        except AttributeError as error:
            tr.raise_(AttributeError, *error.args)
        loaded = namespaces.load(tr, self.entries, name)
        if loaded is not None:
            return loaded
        base = source_by_name(self.obj)
        return value_at(tr, value, None if base is None else AttrSource(base, name))

    def setattr_(self, tr: Tracer, name: str, value: Value) -> None:
        self._refuse_own_rule(name)
        namespaces.store(tr, self.entries, name, value)

    def delattr_(self, tr: Tracer, name: str) -> None:
        self._refuse_own_rule(name)
        if namespaces.load(tr, self.entries, name) is None:
            namespaces.guard_absence(tr, self.entries, name)
            tr.raise_(AttributeError, f"'module' object has no attribute '{name}'")
        namespaces.delete(tr, self.entries, name)

    def _refuse_own_rule(self, name: str) -> None:
        if type(self.obj) is not ModuleType or type_lookup(ModuleType, name) is not None:
            raise GraphBreak(MODULE_STORE, f"{self.obj.__name__}.{name}")


def _is_python_module(obj: object) -> bool:
    return issubclass(type(obj), ModuleType)


@wraps_family(Family.PYTHON_MODULE, _is_python_module)
def wrap_python_module(tr: Tracer, obj: ModuleType, source: Source) -> Value:
    """Wrap a module found at a source, guarded by identity."""
    tr.guard(source, "ID_MATCH", obj)
    entries = namespaces.dictionary_of(obj)
    if entries is not tr.root_globals and namespaces.import_name(entries) is None:
        tr.facts.namespaces.setdefault(id(entries), InstanceDictSource(source))
    return PythonModuleValue(obj, source=source)


builds_family(Family.PYTHON_MODULE, _is_python_module)(value_by_name)
