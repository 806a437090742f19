"""Values of objects reached from something already guarded: no guard is repeated for what cannot change by itself."""

from __future__ import annotations

from enum import Enum
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import torch

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values.stability import mark_stable

if TYPE_CHECKING:
    from framesmith_dynamo.values.base import Tracer, Value
    from framesmith_guards import Source

NO_SOURCE = register_break(
    "object-without-source",
    what="a mutable object is met where the compiled code cannot find it again",
    why="its state could not be checked on the next call",
    hint="keep the object in a global, an argument, or an attribute of one",
)

#: Exact types whose objects never change: `tr.constant` takes them.
IMMUTABLE: Final = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(Ellipsis),
    type(NotImplemented),
    range,
    CodeType,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
)
#: Settings: a class or module that is otherwise left alone may well get a new one.
PLAIN_DATA: Final = (type(None), bool, int, float, complex, str, bytes, tuple)
#: Types whose objects are known by identity: they may stand without a source.
BY_IDENTITY: Final = (
    FunctionType,
    type,
    ModuleType,
    BuiltinFunctionType,
    Enum,
    type(torch.Tensor.add),
    type(list.append),
)


def is_immutable(obj: Any) -> bool:
    """Whether an object and all it holds can never change."""
    if type(obj) in IMMUTABLE:
        return True
    return type(obj) in (tuple, frozenset) and all(is_immutable(item) for item in obj)


def known(tr: Tracer, obj: Any, source: Source | None, *, stable: bool) -> Value:
    """The value of an object found inside another one. `stable`: the holder keeps it for good, so no identity
    guard is needed.
    """
    if is_immutable(obj) and stable:
        return tr.constant(obj)
    if source is None:
        if is_immutable(obj) or issubclass(type(obj), BY_IDENTITY) or issubclass(type(obj), type):
            return tr.constant(obj)
        raise GraphBreak(NO_SOURCE, f"a {type(obj).__module__}.{type(obj).__qualname__}")
    if stable:
        mark_stable(tr, source)
    return tr.wrap(obj, source)
