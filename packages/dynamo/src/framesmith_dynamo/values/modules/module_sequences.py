"""ModuleList and Sequential made in the trace, by slicing for instance: a sequence of existing modules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import handles
from framesmith_dynamo.values.containers import TupleValue
from framesmith_dynamo.values.modules.modules import (
    MODULE_CONSTRUCTION,
    ModuleValue,
    guard_global_hooks,
    has_global_hooks,
)

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen


class ModuleSequenceValue(Value):
    """A new `ModuleList` or `Sequential` of existing modules."""

    python_types = (torch.nn.ModuleList, torch.nn.Sequential)
    __slots__ = ("cls", "modules")

    def __init__(self, cls: type, modules: Sequence[Value]) -> None:
        super().__init__()
        self.cls = cls
        self.modules = tuple(modules)

    def python_type(self) -> type:
        return self.cls

    def as_tuple(self) -> TupleValue:
        """Return the modules as a plain tuple."""
        return TupleValue(self.modules)

    def iter_(self, tr: Tracer) -> Value:
        return self.as_tuple().iter_(tr)

    def unpack(self, tr: Tracer) -> list[Value]:
        return list(self.modules)

    def len_(self, tr: Tracer) -> Value:
        return tr.constant(len(self.modules))

    def bool_(self, tr: Tracer) -> bool:
        return bool(self.modules)

    def getitem(self, tr: Tracer, key: Value) -> Value:
        found = self.as_tuple().getitem(tr, key)
        return ModuleSequenceValue(self.cls, found.unpack(tr)) if isinstance(found, TupleValue) else found

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        guard_global_hooks(tr)
        if self.cls is not torch.nn.Sequential or len(args) != 1 or kwargs or has_global_hooks():
            raise GraphBreak(MODULE_CONSTRUCTION, f"calling a new {self.cls.__name__}")
        result = args[0]
        for module in self.modules:
            result = tr.call(module, (result,), {})
        return result

    def referents(self) -> Iterable[Value]:
        return self.modules

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.push_function(build_sequence)
        codegen.load_const(self.cls)
        for module in self.modules:
            codegen(module)
        codegen.call(1 + len(self.modules))


def build_sequence(cls: type, *modules: torch.nn.Module) -> torch.nn.Module:
    """Called by compiled code: return the new container of modules."""
    made: torch.nn.Module = cls(modules) if cls is torch.nn.ModuleList else cls(*modules)
    return made


@handles(torch.nn.ModuleList)
def make_module_list(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`ModuleList(modules)`."""
    if len(args) > 1 or kwargs:
        raise GraphBreak(MODULE_CONSTRUCTION, "ModuleList")
    return _sequence(torch.nn.ModuleList, args[0].unpack(tr) if args else ())


@handles(torch.nn.Sequential)
def make_sequential(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`Sequential(*modules)`, or of an OrderedDict whose names are the positions."""
    if len(args) == 1 and issubclass(args[0].python_type(), dict):
        names = [key.as_constant() for key in args[0].unpack(tr)]
        if names != [str(i) for i in range(len(names))]:
            raise GraphBreak(MODULE_CONSTRUCTION, f"Sequential with names {names}")
        args = args[0].call_method(tr, "values", (), {}).unpack(tr)
    return _sequence(torch.nn.Sequential, args)


def _sequence(cls: type, modules: Sequence[Value]) -> Value:
    if not all(isinstance(module, ModuleValue) for module in modules):
        raise GraphBreak(MODULE_CONSTRUCTION, cls.__name__)
    return ModuleSequenceValue(cls, modules)
