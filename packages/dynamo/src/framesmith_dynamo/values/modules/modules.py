"""`torch.nn.Module` objects: registries read directly, calls as in `_call_impl`, stores through the journal."""

from __future__ import annotations

from collections.abc import Container
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, Final

import torch

from framesmith_dynamo.breaks import register_break
from framesmith_dynamo.registry import register
from framesmith_dynamo.torch_switches.settings import warn_once
from framesmith_dynamo.values.attribute_dicts.owners import note_instance_dict
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import handles
from framesmith_dynamo.values.containers import DictValue
from framesmith_dynamo.values.lookup.entries import entry_value, guard_class
from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_dynamo.values.objects.objects import OBJECT_FAMILIES, ObjectValue
from framesmith_dynamo.values.wrap_registry import Family, wraps_family
from framesmith_guards import AttrSource, InstanceDictSource, ItemSource, ModuleSource

if TYPE_CHECKING:
    from framesmith_guards import Source

MODULE_CONSTRUCTION = register_break(
    "module-construction",
    what="an nn.Module is made inside the compiled function",
    why="its parameters would be new tensors at every call, made by code with lasting effects",
    hint="make modules outside the compiled function",
)
Module = torch.nn.Module
REGISTRIES: Final = ("_parameters", "_buffers", "_modules")
HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS: Final = (
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
)
_MODULE_FILE: Final = torch.nn.modules.module.__name__
_MODULE_CODE: Final = torch.nn.modules.module.__file__
#: The mark that `torch._dynamo.mark_static` sets on a class.
STATIC_CLASS: Final = "_dynamo_marked_static"
#: Attributes of a module that change its calls.
_OWN_CALLS: Final = ("_call_impl", "_compiled_call_impl")
_PLAIN_CALL: Final = {"__call__": Module.__call__, "_call_impl": Module._call_impl}


class ModuleValue(ObjectValue):
    """An existing module."""

    __slots__ = ()

    def attribute_source(self, name: str) -> Source:
        assert self.source is not None
        found = type_lookup(self.cls, name)
        if found is not None and isinstance(found.raw, MemberDescriptorType):
            return AttrSource(self.source, name)
        return ItemSource(InstanceDictSource(self.source), name)

    # Registries

    def find_attribute(self, tr: Tracer, name: str) -> Value | None:
        """Look up a registered name in its registry: setting it elsewhere removes it from there."""
        if name in (self.entries() or ()) or type_lookup(self.cls, name) is not None or not self._is_registered(name):
            return super().find_attribute(tr, name)
        return None if tr.journal.load_attr(self, name) is None else super().find_attribute(tr, name)

    def _is_registered(self, name: str) -> bool:
        entries = self.entries() or {}
        return any(name in entries.get(registry, ()) for registry in REGISTRIES)

    def missing_attribute(self, tr: Tracer, name: str) -> Value | None:
        found = type_lookup(self.cls, "__getattr__")
        if found is not None and found.raw is Module.__getattr__:
            return self.registered(tr, name)
        return super().missing_attribute(tr, name)

    def registered(self, tr: Tracer, name: str) -> Value | None:
        """`nn.Module.__getattr__`: parameter, buffer or submodule `name`; None when there is none."""
        for registry in REGISTRIES:
            found = self._registered_in(tr, registry, name)
            if found is not None:
                return found
        return None

    def _registered_in(self, tr: Tracer, registry: str, name: str) -> Value | None:
        real = self._unchanged_registry(tr, registry)
        if real is None:
            entries = self.own_attribute(tr, registry)
            key = tr.constant(name)
            return entries.getitem(tr, key) if entries is not None and entries.contains(tr, key).bool_(tr) else None
        source = self.attribute_source(registry)
        if name in real:
            return tr.wrap(real[name], ItemSource(source, name))
        if not self._is_registered(name):
            tr.guard(source, "DICT_NOT_CONTAINS", name)
        return None

    def _unchanged_registry(self, tr: Tracer, registry: str) -> dict[str, Any] | None:
        """The real dictionary of a registry, unless the trace has changed or replaced it."""
        real = (self.entries() or {}).get(registry)
        if real is None or tr.journal.load_attr(self, registry) is not None:
            return None
        tracked = tr.journal.value_of(real)
        return None if tracked is not None and tr.journal.is_mutated(tracked) else real

    def _is_registered_now(self, tr: Tracer, name: str) -> bool:
        """Whether a registry currently has the name."""
        return any(name in self._names_in(tr, registry) for registry in REGISTRIES)

    def _names_in(self, tr: Tracer, registry: str) -> Container[object]:
        real = self._unchanged_registry(tr, registry)
        if real is not None:
            return real
        pending = tr.journal.load_attr(self, registry)
        if pending is None:
            pending = tr.journal.value_of((self.entries() or {}).get(registry))
        return pending.entries if isinstance(pending, DictValue) else ()

    def setattr_(self, tr: Tracer, name: str, value: Value) -> None:
        """Interpret `nn.Module.__setattr__`, except for plain attributes that remain plain.

        A name in the module's dictionary is in none of its registries.
        """
        found = type_lookup(self.cls, "__setattr__")
        plain = name in (self.entries() or ()) and not self._is_registered_now(tr, name)
        registers = isinstance(value, ModuleValue) or issubclass(value.python_type(), torch.nn.Parameter)
        if found is not None and found.raw is Module.__setattr__ and plain and not registers:
            if self.source is not None:
                tr.guard(InstanceDictSource(self.source), "DICT_CONTAINS", name)
            self.generic_setattr(tr, name, value)
        else:
            super().setattr_(tr, name, value)

    # Calls

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        if not self._is_called_plainly():
            return super().call(tr, args, kwargs)
        self._guard_plain_calls(tr)
        guard_global_hooks(tr)
        if self._count_hooks(tr) or has_global_hooks():
            return tr.call(self.getattr_(tr, "_call_impl"), args, kwargs)
        return self.call_method(tr, "forward", args, kwargs)

    def _is_called_plainly(self) -> bool:
        """Whether a call of the module is `nn.Module.__call__` without overrides."""
        for name, plain in _PLAIN_CALL.items():
            found = type_lookup(self.cls, name)
            if found is None or found.raw is not plain or plain.__code__.co_filename != _MODULE_CODE:
                return False
        entries = self.entries() or {}
        return not any(name in entries for name in _OWN_CALLS)

    def _guard_plain_calls(self, tr: Tracer) -> None:
        """Guard that a call of the module is not overridden."""
        for name in _PLAIN_CALL:
            found = type_lookup(self.cls, name)
            assert found is not None
            entry_value(tr, self.cls, found, name, self.source)
        for name in _OWN_CALLS:
            self.guard_absent(tr, name)

    def _count_hooks(self, tr: Tracer) -> int:
        """Return the number of the module's hooks, guarded."""
        return sum(self._hook_count(tr, name) for name in HOOKS)

    def _hook_count(self, tr: Tracer, name: str) -> int:
        real = self._unchanged_registry(tr, name)
        if real is not None:
            if (id(self), name) not in tr.facts.counted_hooks:
                tr.facts.counted_hooks.add((id(self), name))
                tr.guard(self.attribute_source(name), "LENGTH", len(real))
            return len(real)
        hooks = self.own_attribute(tr, name)
        return 0 if hooks is None else int(hooks.len_(tr).as_constant())


register(OBJECT_FAMILIES, Module)(ModuleValue)


def guard_global_hooks(tr: Tracer) -> None:
    """Guard, once per trace, the hooks that apply to all modules."""
    if not tr.facts.counted_global_hooks:
        tr.facts.counted_global_hooks = True
        for name in GLOBAL_HOOKS:
            count = len(getattr(torch.nn.modules.module, name))
            tr.guard(AttrSource(ModuleSource(_MODULE_FILE), name), "LENGTH", count)


def has_global_hooks() -> bool:
    """Whether torch has hooks that apply to all modules."""
    return any(getattr(torch.nn.modules.module, name) for name in GLOBAL_HOOKS)


@handles(Module.__getattr__)
def module_getattr(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`nn.Module.__getattr__(module, name)`, also reached by `super().__getattr__(name)`."""
    module, name = args[0], args[1].as_constant()
    if not isinstance(module, ModuleValue):
        module.unsupported(f"attribute {name!r}")
    found = module.registered(tr, name)
    if found is None:
        module.no_attribute(tr, name)
    return found


@handles(Module.__call__)
def module_call(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`nn.Module.__call__(module, ...)`, also reached by `super().__call__(...)`."""
    return tr.call(args[0].getattr_(tr, "_call_impl"), args[1:], kwargs)


def is_module(obj: Any) -> bool:
    """Whether an object is an nn.Module, by its type alone."""
    return issubclass(type(obj), Module)


@wraps_family(Family.MODULE, is_module)
def wrap_module(tr: Tracer, obj: torch.nn.Module, source: Source) -> Value:
    """Wrap a module: guarded by type; its attributes are guarded when they are read."""
    tr.guard(source, "TYPE_MATCH", type(obj))
    guard_class(tr, type(obj), source)
    if getattr(type(obj), STATIC_CLASS, False):
        warn_once(
            "torch._dynamo.mark_static of a module class has no effect: its numbers are symbols once they have changed"
        )
    value = ModuleValue(type(obj), obj, source=source)
    note_instance_dict(tr, value)
    return value
