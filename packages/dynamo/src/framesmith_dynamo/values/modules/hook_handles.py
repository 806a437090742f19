"""Handles of hooks, existing ones and those that the trace registers on modules.

Each handle has a number that no other has, the key of its hook in the module's dictionaries. The trace does not know
that of a new one: it reads nothing of torch's counter. So calls that register and remove hooks need not be compiled
again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torch.utils.hooks import RemovableHandle

from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.values.attribute_dicts.owners import note_instance_dict
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import handles, named
from framesmith_dynamo.values.containers import DictValue, ListValue
from framesmith_dynamo.values.lookup.entries import guard_class
from framesmith_dynamo.values.modules.hook_dicts import hook_number
from framesmith_dynamo.values.objects.objects import ObjectValue
from framesmith_dynamo.values.tensors.hooks import HANDLE_ASKED
from framesmith_dynamo.values.wrap_registry import wraps_type

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source


class NewHookNumber(Value):
    """The number of a hook that the trace has registered; as a key it is equal to itself alone."""

    python_types = (int,)
    __slots__ = ("handle",)

    def __init__(self, handle: Value) -> None:
        super().__init__()
        self.handle = handle

    def hash_key(self, tr: Tracer) -> object:
        return self

    def referents(self) -> Iterable[Value]:
        return (self.handle,)

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.push_call(getattr, (self.handle,), ("id",))


class ModuleHookHandleValue(Value):
    """The handle of a hook in `dicts`, the dictionaries that `remove` removes it from."""

    python_types = (RemovableHandle,)
    __slots__ = ("dicts", "number")

    def __init__(self, dicts: Sequence[DictValue]) -> None:
        super().__init__()
        self.dicts = dicts
        self.number = NewHookNumber(self)

    def call_method(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name == "__enter__":
            return self
        if name != "__exit__" and (name != "remove" or args or kwargs):
            raise GraphBreak(HANDLE_ASKED, f"{name}()")
        for hooks in self.dicts:
            hooks.discard(tr, self.number)
        return tr.constant(None)

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "id":
            return self.number
        raise GraphBreak(HANDLE_ASKED, f"attribute {name!r}")

    def referents(self) -> Iterable[Value]:
        return self.dicts

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.push_call(new_handle, self.dicts)


def new_handle(hooks: OrderedDict[int, object], *others: dict[int, object]) -> RemovableHandle:
    """Return the handle of a hook; called by compiled code."""
    return RemovableHandle(hooks, extra_dict=[*others])


class ExistingHandleValue(ObjectValue):
    """A handle found at a source."""

    __slots__ = ()

    def own_attribute(self, tr: Tracer, name: str) -> Value | None:
        number = (self.entries() or {}).get(name)
        if name != "id" or type(number) is not int or tr.journal.load_attr(self, name) is not None:
            return super().own_attribute(tr, name)
        source = self.attribute_source(name)
        tr.guard(source, "TYPE_MATCH", int)
        return hook_number(tr, number, source)


@wraps_type(RemovableHandle)
def wrap_handle(tr: Tracer, obj: RemovableHandle, source: Source) -> Value:
    """Wrap a handle found at a source as any object of a Python class; its number is guarded only where it is read."""
    tr.guard(source, "TYPE_MATCH", RemovableHandle)
    guard_class(tr, RemovableHandle, source)
    value = ExistingHandleValue(RemovableHandle, obj, source=source)
    note_instance_dict(tr, value)
    return value


@handles(RemovableHandle)
def construct(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`RemovableHandle(hooks, extra_dict=...)`."""
    given = named(tr, RemovableHandle, args, kwargs, ("hooks_dict", "extra_dict"), 1)
    extra = given.get("extra_dict", tr.constant(None))
    others = extra.unpack(tr) if isinstance(extra, ListValue) else [] if extra.is_none() else [extra]
    dicts = [one for one in (given["hooks_dict"], *others) if isinstance(one, DictValue) and one.cls is OrderedDict]
    if len(dicts) != 1 + len(others):
        raise GraphBreak(HANDLE_ASKED, "a handle of dictionaries that take no weak references")
    handle = ModuleHookHandleValue(dicts)
    tr.journal.track_new(handle, RemovableHandle)
    return handle
