"""Python module objects (`torch`, `math`, `F`): attribute look-up in the module's dictionary, guarded unless the
library keeps it.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.constants.constant import BUILD_PROTOCOLS
from framesmith_dynamo.values.known import PLAIN_DATA, known
from framesmith_dynamo.values.lookup import home_source, is_trusted, type_lookup
from framesmith_dynamo.values.pins import pin
from framesmith_dynamo.values.stability import is_stable
from framesmith_dynamo.values.wrap_registry import wraps_protocol
from framesmith_guards import AttrSource

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source

MODULE_STORE = register_break(
    "python-module-store",
    what="an attribute of a Python module is set or deleted",
    why="every user of the module would see it at once",
    hint="do it outside the compiled function",
)
MODULE_ATTRIBUTE = register_break(
    "python-module-attribute",
    what="a Python module computes an attribute",
    why="its __getattr__ may import or run any code",
    hint="read the attribute once before calling the compiled function, or import the name directly",
)


class PythonModuleValue(Value):
    """A module object, known by identity."""

    python_types = (ModuleType,)
    exact_operators = True
    __slots__ = ("module",)

    def __init__(self, module: ModuleType, *, source: Source | None = None) -> None:
        super().__init__(source=source)
        self.module = module

    def python_type(self) -> type:
        return type(self.module)

    def describe(self) -> str:
        return f"module {self.module.__name__}"

    def is_constant(self) -> bool:
        return True

    def as_constant(self) -> ModuleType:
        return self.module

    def hash_key(self, tr: Tracer) -> object:
        return self.module

    def bool_(self, tr: Tracer) -> bool:
        return True

    def getattr_(self, tr: Tracer, name: str) -> Value:
        entries = ModuleType.__getattribute__(self.module, "__dict__")
        source = self._attribute_source(name)
        stable = is_trusted(self.module.__name__)
        if name in entries:
            if stable:
                pin(tr, self.module, name, entries[name])
            return known(tr, entries[name], source, stable=stable and type(entries[name]) not in PLAIN_DATA)
        if (
            type_lookup(type(self.module), name) is None
            and "__getattr__" not in entries
            and type(self.module) is ModuleType
        ):
            tr.raise_(AttributeError, f"module '{self.module.__name__}' has no attribute '{name}'")
        if stable:
            return self._computed(tr, name, source)
        raise GraphBreak(MODULE_ATTRIBUTE, f"{self.module.__name__}.{name}")

    def _computed(self, tr: Tracer, name: str, source: Source | None) -> Value:
        """A lazy attribute of a trusted library: its look-up only imports."""
        try:
            found = getattr(self.module, name)
        except AttributeError as error:
            tr.raise_(AttributeError, *error.args)
        return known(tr, found, source, stable=type(found) not in PLAIN_DATA)

    def _attribute_source(self, name: str) -> Source | None:
        base = self.source if self.source is not None else home_source(self.module)
        return AttrSource(base, name) if base is not None else None

    def setattr_(self, tr: Tracer, name: str, value: Value) -> None:
        raise GraphBreak(MODULE_STORE, f"{self.module.__name__}.{name}")

    def delattr_(self, tr: Tracer, name: str) -> None:
        raise GraphBreak(MODULE_STORE, f"{self.module.__name__}.{name}")

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None:
            super().reconstruct(codegen)
        else:
            codegen.load_const(self.module)


def _is_python_module(obj: object) -> bool:
    return issubclass(type(obj), ModuleType)


@wraps_protocol(_is_python_module, priority=4)
def wrap_python_module(tr: Tracer, obj: ModuleType, source: Source) -> Value:
    """A module met at a source: the same module at every call."""
    if not is_stable(tr, source):
        tr.guard(source, "ID_MATCH", obj)
    return PythonModuleValue(obj, source=source)


def _build_module(tr: Tracer, obj: ModuleType) -> Value:
    return PythonModuleValue(obj)


BUILD_PROTOCOLS.append((_is_python_module, _build_module))
