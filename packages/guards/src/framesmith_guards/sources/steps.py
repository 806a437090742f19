"""Sources that take one step from another source: attributes, items, types, cells, tensor properties."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from types import FunctionType, MappingProxyType
from typing import Any, Final

from framesmith_guards.errors import GuardError, nearest
from framesmith_guards.sources.base import Names, Step
from framesmith_guards.sources.caches import ABSENT, CallKey, cached_entry
from framesmith_guards.torch_adapter import unstable
from framesmith_guards.values.constants import dict_kind, is_constant

Args = Mapping[str, object]

TENSOR_PROPERTIES: Final = ("size", "stride", "storage_offset")


@dataclass(frozen=True, eq=False, repr=False)
class AttrSource(Step):
    """`getattr(base, attr)`."""

    attr: str

    def read(self, base: Any, args: Args, function: FunctionType) -> object:
        return getattr(base, self.attr)

    def expression(self, base: str, names: Names) -> str:
        return self.label(base)

    def label(self, base: str) -> str:
        return f"{base}.{self.attr}" if self.attr.isidentifier() else f"getattr({base}, {self.attr!r})"


@dataclass(frozen=True, eq=False, repr=False)
class InstanceDictSource(Step):
    """`base.__dict__`: an instance's attributes, past any `__getattr__` or descriptor."""

    def read(self, base: Any, args: Args, function: FunctionType) -> object:
        return base.__dict__

    def expression(self, base: str, names: Names) -> str:
        return f"{base}.__dict__"

    def label(self, base: str) -> str:
        return f"{base}.__dict__"


@dataclass(frozen=True, eq=False, repr=False)
class ItemSource(Step):
    """`base[key]` with a constant key."""

    key: object

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_key(self)

    def read(self, base: Any, args: Args, function: FunctionType) -> object:
        return base[self.key]

    def expression(self, base: str, names: Names) -> str:
        return f"{base}[{names.bind(self.key, 'key')}]"

    def label(self, base: str) -> str:
        return f"{base}[{self.key!r}]"


def _check_key(source: ItemSource | StoredItemSource) -> None:
    if not is_constant(source.key):
        raise GuardError(
            f"the key of {type(source).__name__} is a constant, not a {type(source.key).__name__}; "
            "use DictKeySource and DictValueSource to reach entries of other keys by position"
        )


def stored_item(base: Any, key: object) -> object:
    """Return a dict's, list's or deque's item past its class's `__getitem__` and `__missing__`; LookupError if none."""
    if isinstance(base, list):
        return list.__getitem__(base, key)  # type: ignore[call-overload]
    if isinstance(base, deque):
        return deque.__getitem__(base, key)  # type: ignore[index]
    found = dict_kind(base).get(base, key, _NOTHING)
    if found is _NOTHING:
        raise KeyError(key)
    return found


_NOTHING: Final = object()


@dataclass(frozen=True, eq=False, repr=False)
class StoredItemSource(Step):
    """A dict's, list's or deque's item for a constant key, past its class's own `__getitem__`."""

    key: object

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_key(self)

    def read(self, base: Any, args: Args, function: FunctionType) -> object:
        return stored_item(base, self.key)

    def expression(self, base: str, names: Names) -> str:
        return f"{names.bind(stored_item, 'stored_item')}({base}, {names.bind(self.key, 'key')})"

    def label(self, base: str) -> str:
        return f"stored_item({base}, {self.key!r})"


@dataclass(frozen=True, eq=False, repr=False)
class MembersSource(Step):
    """A frozenset of a set's members, past the methods of its class."""

    def read(self, base: Any, args: Args, function: FunctionType) -> object:
        return members_of(base)

    def expression(self, base: str, names: Names) -> str:
        return f"{names.bind(members_of, 'members_of')}({base})"

    def label(self, base: str) -> str:
        return f"members_of({base})"


def members_of(obj: Any) -> frozenset[Any]:
    """Return the members of a set or frozenset past its class's methods; TypeError for anything else."""
    if not isinstance(obj, set | frozenset):
        raise TypeError(f"not a set: {type(obj).__name__}")
    return frozenset().union(obj)


def mapping_behind(proxy: MappingProxyType[Any, Any]) -> Any:
    """Return the mapping of a mapping proxy past the mapping's methods; TypeError for anything else."""
    if type(proxy) is not MappingProxyType:
        raise TypeError(f"not a mapping proxy: {type(proxy).__name__}")
    [mapping] = gc.get_referents(proxy)
    return mapping


@dataclass(frozen=True, eq=False, repr=False)
class ProxiedSource(Step):
    """The mapping behind a mapping proxy."""

    def read(self, base: Any, args: Args, function: FunctionType) -> object:
        return mapping_behind(base)

    def expression(self, base: str, names: Names) -> str:
        return f"{names.bind(mapping_behind, 'mapping_behind')}({base})"

    def label(self, base: str) -> str:
        return f"mapping_behind({base})"


@dataclass(frozen=True, eq=False, repr=False)
class TypeSource(Step):
    """`type(base)`."""

    def read(self, base: Any, args: Args, function: FunctionType) -> object:
        return type(base)

    def expression(self, base: str, names: Names) -> str:
        return f"type({base})"

    def label(self, base: str) -> str:
        return f"type({base})"


@dataclass(frozen=True, eq=False, repr=False)
class SubclassesSource(Step):
    """A list of the direct subclasses of a class, as `type.__subclasses__` returns."""

    def read(self, base: Any, args: Args, function: FunctionType) -> object:
        return type.__subclasses__(base)

    def expression(self, base: str, names: Names) -> str:
        return f"type.__subclasses__({base})"

    def label(self, base: str) -> str:
        return f"{base}.__subclasses__()"


def nth_key(base: Any, index: int) -> object:
    """Return the key at a position of a dict or frozendict, past its class; IndexError past the end."""
    return nth(dict_kind(base).keys(base), index)


def nth_value(base: Any, index: int) -> object:
    """Return the value at a position of a dict or frozendict, past its class; IndexError past the end."""
    return nth(dict_kind(base).values(base), index)


def nth(items: Any, index: int) -> object:
    """Return the item at `index` of any iterable; IndexError past its end."""
    for item in islice(items, index, None):
        return item
    raise IndexError(index)


@dataclass(frozen=True, eq=False, repr=False)
class DictKeySource(Step):
    """The key at a position of a dict or frozendict, in insertion order. O(index)."""

    index: int

    def read(self, base: Any, args: Args, function: FunctionType) -> object:
        return nth_key(base, self.index)

    def expression(self, base: str, names: Names) -> str:
        return f"{names.bind(nth_key, 'nth_key')}({base}, {self.index})"

    def label(self, base: str) -> str:
        return f"list({base})[{self.index}]"


@dataclass(frozen=True, eq=False, repr=False)
class DictValueSource(Step):
    """The value at a position of a dict or frozendict, in insertion order, whatever the keys are. O(index)."""

    index: int

    def read(self, base: Any, args: Args, function: FunctionType) -> object:
        return nth_value(base, self.index)

    def expression(self, base: str, names: Names) -> str:
        return f"{names.bind(nth_value, 'nth_value')}({base}, {self.index})"

    def label(self, base: str) -> str:
        return f"list({base}.values())[{self.index}]"


@dataclass(frozen=True, eq=False, repr=False)
class CellContentsSource(Step):
    """The contents of a cell object, such as an item of another function's `__closure__`."""

    def read(self, base: Any, args: Args, function: FunctionType) -> object:
        return base.cell_contents

    def expression(self, base: str, names: Names) -> str:
        return f"{base}.cell_contents"

    def label(self, base: str) -> str:
        return f"{base}.cell_contents"


@dataclass(frozen=True, eq=False, repr=False)
class WeakRefSource(Step):
    """The referent of a weak reference."""

    def read(self, base: Any, args: Args, function: FunctionType) -> object:
        return base()

    def expression(self, base: str, names: Names) -> str:
        return f"{base}()"

    def label(self, base: str) -> str:
        return f"{base}()"


@dataclass(frozen=True, eq=False, repr=False)
class CachedResultSource(Step):
    """The entry of a function with `functools.lru_cache` for a call; LookupError if none. The cache does not notice."""

    key: CallKey

    def read(self, base: Any, args: Args, function: FunctionType) -> object:
        return cached_result(base, self.key)

    def expression(self, base: str, names: Names) -> str:
        return f"{names.bind(cached_result, 'cached_result')}({base}, {names.bind(self.key, 'key')})"

    def label(self, base: str) -> str:
        return f"cached {base}({self.key})"


def cached_result(cache: Any, key: CallKey) -> Any:
    """Return a cached function's entry for a call; LookupError if there is none."""
    found = cached_entry(cache, key.of(cache))
    if found is ABSENT:
        raise LookupError(str(key))
    return found


@dataclass(frozen=True, eq=False, repr=False)
class TensorPropertySource(Step):
    """A size or stride of one dimension of a tensor, or its storage offset: an int, in elements."""

    property: str
    dim: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.property not in TENSOR_PROPERTIES:
            raise GuardError(f"no tensor property {self.property!r}: {nearest(self.property, TENSOR_PROPERTIES)}")
        if (self.dim is None) != (self.property == "storage_offset"):
            raise GuardError(f"{self.property} needs a dimension, storage_offset takes none (dim={self.dim})")

    def read(self, base: Any, args: Args, function: FunctionType) -> object:
        with unstable.DisableTorchFunction():
            reader = getattr(base, self.property)
            return reader() if self.dim is None else reader(self.dim)

    def expression(self, base: str, names: Names) -> str:
        return self.label(base)

    def label(self, base: str) -> str:
        return f"{base}.{self.property}({'' if self.dim is None else self.dim})"
