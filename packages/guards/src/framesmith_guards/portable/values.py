"""Constants and names as JSON values, and back: one row per kind of value.

JSON's own null, true, false, numbers without a point and strings stand for themselves; everything else is a list
whose first item is the row's tag.
"""

from __future__ import annotations

import enum
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final

import torch

from framesmith_guards.errors import GuardError
from framesmith_guards.values.constants import FROZEN_DICTS, builtin_type
from framesmith_guards.values.refs import Ref, describe, is_exported

Json = Any

Encode = Callable[[Any], Json]
Decode = Callable[[Any], Any]


def _resolve(module: str, qualname: str) -> Any:
    """Return an imported module's export of this name. Nothing is imported: that would execute code."""
    found: Any = sys.modules.get(module)
    if found is None:
        raise GuardError(f"{module}.{qualname} cannot be found: {module} is not imported; import it first")
    for part in qualname.split("."):
        found = vars(found).get(part, _MISSING)
        if found is _MISSING:
            raise GuardError(f"{module} exports no {qualname} any more")
    return found


_MISSING: Final = object()


def _exported(value: Any) -> list[str]:
    if not is_exported(value):
        raise GuardError(f"{describe(value)} cannot travel: no module exports it under its own name")
    return [value.__module__, value.__qualname__]


def _resolved(names: list[str]) -> Any:
    value = _resolve(*names)
    if not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)) or not is_exported(value):
        raise GuardError(f"{'.'.join(names)} is no exported class or function here")
    return value


def _torch_name(prefix: str) -> tuple[Encode, Decode]:
    kinds = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}

    def decode(name: Any) -> Any:
        found = vars(torch).get(str(name))
        if not isinstance(found, kinds[prefix]):
            raise GuardError(f"this torch has no {prefix} {name!r}")
        return found

    return (lambda value: str(value).removeprefix("torch.")), decode


def _many(make: Callable[[Any], Any]) -> tuple[Encode, Decode]:
    return (lambda value: [encode(item) for item in value]), (lambda items: make(decode(item) for item in items))


def _pairs(make: Callable[[Any], Any]) -> tuple[Encode, Decode]:
    return (
        lambda value: [[encode(key), encode(item)] for key, item in value.items()],
        lambda pairs: make((decode(key), decode(item)) for key, item in pairs),
    )


def _range_parts(make: Callable[..., Any]) -> tuple[Encode, Decode]:
    return (
        lambda value: [encode(part) for part in (value.start, value.stop, value.step)],
        lambda parts: make(*(decode(part) for part in parts)),
    )


def _sentinel() -> tuple[Encode, Decode]:
    """Sentinels travel by the module and the name that they were made with, under which the module has them."""

    def written(value: Any) -> list[str]:
        name: str = value.__name__
        if not name.isidentifier() or vars(sys.modules.get(value.__module__, types)).get(name) is not value:
            raise GuardError(f"the sentinel {name} cannot travel: no module exports it under its own name")
        return [value.__module__, name]

    def read(names: list[str]) -> Any:
        value = _resolve(*names)
        if type(value) not in _SENTINELS:
            raise GuardError(f"{'.'.join(names)} is no sentinel here")
        return value

    return written, read


_SENTINELS: Final = builtin_type("sentinel")

Row = tuple[str, tuple[Encode, Decode]]

_ROWS: Final[dict[type, Row]] = {
    float: ("float", (float.hex, float.fromhex)),
    complex: ("complex", (lambda v: [v.real.hex(), v.imag.hex()], lambda v: complex(*map(float.fromhex, v)))),
    bytes: ("bytes", (bytes.hex, bytes.fromhex)),
    tuple: ("tuple", _many(tuple)),
    list: ("list", _many(list)),
    set: ("set", _many(set)),
    frozenset: ("frozenset", _many(frozenset)),
    deque: ("deque", _many(deque)),
    torch.Size: ("size", _many(torch.Size)),
    dict: ("dict", _pairs(dict)),
    OrderedDict: ("ordered", _pairs(OrderedDict)),
    **{cls: ("frozendict", _pairs(cls)) for cls in FROZEN_DICTS},
    **{cls: ("sentinel", _sentinel()) for cls in _SENTINELS},
    range: ("range", _range_parts(range)),
    slice: ("slice", _range_parts(slice)),
    torch.dtype: ("dtype", _torch_name("dtype")),
    torch.layout: ("layout", _torch_name("layout")),
    torch.memory_format: ("memory_format", _torch_name("memory_format")),
    torch.device: ("device", (str, torch.device)),
    types.EllipsisType: ("ellipsis", (lambda _: None, lambda _: ...)),
}

_PLAIN: Final = (type(None), bool, int, str)


def _enum(names: list[str]) -> Any:
    *path, member = names
    cls = _resolved(path)
    if not issubclass(cls, enum.Enum) or member not in cls.__members__:
        raise GuardError(f"{'.'.join(path)} has no member {member}")
    return cls[member]


def _module(name: str) -> Any:
    if name not in sys.modules:
        raise GuardError(f"the module {name} is not imported; import it first")
    return sys.modules[name]


_DECODERS: Final[dict[str, Decode]] = {
    **{tag: decode for tag, (_, decode) in _ROWS.values()},
    "export": _resolved,
    "enum": _enum,
    "module": _module,
    "ref": lambda value: Ref(decode(value)),
}


def encode(value: Any) -> Json:
    """Return a value as JSON. GuardError, with its name, if it means something in this process only."""
    cls = type(value)
    if cls in _PLAIN:
        return value
    if cls in _ROWS:
        tag, (write, _) = _ROWS[cls]
        return [tag, write(value)]
    if isinstance(value, Ref):
        if value.weak:
            raise GuardError(f"{value.text} cannot travel: it exists in this process only")
        return ["ref", encode(value.get())]
    if isinstance(value, enum.Enum):
        return ["enum", [*_exported(cls), value.name]]
    if isinstance(value, types.ModuleType):
        return ["module", value.__name__]
    return ["export", _exported(value)]


def decode(value: Json) -> Any:
    """Return the value that `encode` wrote. GuardError for anything else, and for a name that is not found here."""
    if type(value) in _PLAIN:
        return value
    if type(value) is not list or len(value) != 2 or value[0] not in _DECODERS:
        raise GuardError(f"no portable value: {str(value)[:80]}")
    return _DECODERS[value[0]](value[1])
