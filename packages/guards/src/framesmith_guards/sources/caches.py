"""The contents of a `functools.lru_cache`, read without a trace: no hit or miss is counted, and no order changes.

CPython's caches have no such method. The contents are read off `gc.get_referents`; their positions there are found
once, in caches made for that (`why_unknown` says why they were not found).
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from framesmith_guards.values.constants import is_constant, same_constant
from framesmith_guards.values.refs import Ref, describe

if TYPE_CHECKING:
    from framesmith_guards.sources.base import Source

CACHE: Final[type] = functools._lru_cache_wrapper
"""The type of cached functions."""


class Absent:
    """The type of `ABSENT`."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = Absent()
"""A call that a cache holds no result of; as an expectation: none at all."""


@dataclass(frozen=True)
class Layout:
    """Positions among a cache's referents: from the end, of its dict and of the mark before keywords; of bounded caches
    the first key and the distance to the next; results follow their keys.
    """

    entries: int
    mark: int
    first: int
    stride: int


def _sample(size: int | None) -> tuple[Any, list[Any]]:
    made: Any = functools.lru_cache(size)(lambda key, by: (key, by))
    for key in ("first", "second"):
        made(key, by=1)
    return made, gc.get_referents(made)


def _from_end(referents: list[Any], cls: type, but: object) -> int:
    [place] = [at for at, found in enumerate(referents) if type(found) is cls and found is not but]
    return place - len(referents)


@functools.cache
def layout() -> Layout | None:
    """Return the layout of this interpreter's caches; None where it is another than those known."""
    try:
        (unbounded, plain), (bounded, linked) = _sample(None), _sample(2)
        entries, mark = _from_end(plain, dict, vars(unbounded)), _from_end(plain, object, None)
        if (entries, mark) != (_from_end(linked, dict, vars(bounded)), _from_end(linked, object, None)):
            return None
        keys = [("first", linked[mark], "by", 1), ("second", linked[mark], "by", 1)]
        first, second = (next(at for at, found in enumerate(linked) if found == key) for key in keys)
        results = [linked[first + 1], linked[second + 1], *map(plain[entries].get, keys)]
        fits = results[:2] == [("first", 1), ("second", 1)] and set(linked[entries]) == set(keys)
        fits = fits and ("first", plain[mark], "by", 1) in plain[entries]
        return Layout(entries, mark, first, second - first) if fits else None
    except (ValueError, StopIteration, TypeError, IndexError):
        return None


def why_unknown(cache: Any) -> str | None:
    """Return why a cache's contents cannot be read, or None."""
    if type(cache) is not CACHE:
        return f"{describe(cache)} is no cache of functools"
    if not callable(getattr(cache, "cache_parameters", None)):
        return "it does not say how its keys are made"
    return None if layout() is not None else "this interpreter's caches are laid out in an unknown way"


def call_key(cache: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> Any:
    """Return the key under which a cache stores a call."""
    typed = cache.cache_parameters()["typed"]
    if not typed and not kwargs:
        return args[0] if len(args) == 1 and type(args[0]) in (int, str) else args
    key = args
    if kwargs:
        where = layout()
        assert where is not None
        key = (*key, gc.get_referents(cache)[where.mark], *(part for pair in kwargs for part in pair))
    return (*key, *map(type, args), *(type(value) for _, value in kwargs)) if typed else key


def cached_entry(cache: Any, key: Any) -> Any:
    """Return a cache's entry for a key, or ABSENT. TypeError where a key defines its own equality."""
    where = layout()
    assert where is not None
    referents = gc.get_referents(cache)
    entries = referents[where.entries]
    if cache.cache_parameters()["maxsize"] is None:
        return entries.get(key, ABSENT)
    if key not in entries:
        return ABSENT
    for place in range(where.first, where.first + where.stride * len(entries), where.stride):
        found = referents[place]
        if found is key or (type(found) is type(key) and found == key):
            return referents[place + 1]
    raise TypeError("a cache of another layout")


@dataclass(frozen=True)
class Computed:
    """An int computed from sizes and numbers of the call: `function` of the values at the sources."""

    text: str
    sources: tuple[Source, ...]
    function: Callable[..., Any] = field(compare=False)


@dataclass(frozen=True)
class Items:
    """A tuple or list by its items."""

    cls: type
    items: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Entries:
    """A dict by its keys, which are constants, and values."""

    pairs: tuple[tuple[Any, Any], ...]


@dataclass(frozen=True, eq=False)
class Instance:
    """An object of a plain class, by its attributes' values."""

    cls: Ref
    attributes: tuple[tuple[str, Any], ...]


Numbers = Mapping["Source", Any]
"""The values at the sources of `Computed` ints."""

NO_NUMBERS: Final[Numbers] = MappingProxyType({})


def _compute(part: Computed, numbers: Numbers) -> int:
    return int(part.function(*(numbers[source] for source in part.sources)))


def matches(found: Any, expected: Any, numbers: Numbers) -> bool:
    """Whether an object is as expected: an equal constant, or composed as `Items` and others say."""
    match expected:
        case Computed():
            return type(found) is int and found == _compute(expected, numbers)
        case Items(cls, items):
            if not isinstance(found, (tuple, list)) or type(found) is not cls or len(found) != len(items):
                return False
            return all(matches(mine, item, numbers) for mine, item in zip(found, items, strict=True))
        case Entries(pairs):
            if type(found) is not dict or not same_constant(list(found), [key for key, _ in pairs]):
                return False
            return all(matches(mine, value, numbers) for mine, (_, value) in zip(found.values(), pairs, strict=True))
        case Instance(cls, attributes):
            if not cls.refers_to(type(found)) or list(found.__dict__) != [name for name, _ in attributes]:
                return False
            return all(matches(found.__dict__[name], value, numbers) for name, value in attributes)
    return same_constant(found, expected)


def parts_of(value: Any) -> tuple[Any, ...]:
    """Return the parts of an expectation; none for a constant."""
    match value:
        case Items():
            return value.items
        case Entries():
            return tuple(held for _, held in value.pairs)
        case Instance():
            return tuple(held for _, held in value.attributes)
        case CachedCall():
            return (*value.key.args, *(part for _, part in value.key.kwargs), value.result)
    return ()


def sources_of(*values: Any) -> tuple[Source, ...]:
    """Return the sources of all `Computed` ints in expectations."""
    found: dict[Source, None] = {}
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        found.update(dict.fromkeys(value.sources if isinstance(value, Computed) else ()))
        waiting.extend(parts_of(value))
    return tuple(found)


def is_result(value: Any) -> bool:
    """Whether a value can be expected of a cache."""
    if isinstance(value, (Items, Entries, Instance)):
        return all(map(is_result, parts_of(value)))
    return isinstance(value, Computed) or is_constant(value)


@dataclass(frozen=True, eq=False)
class CallKey:
    """The arguments of a call: constants, identities, results of other cached calls, computed ints, tuples of these."""

    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()

    def of(self, cache: Any, numbers: Numbers = NO_NUMBERS) -> Any:
        """Return the call's key. LookupError where an argument is the result of a call that is not stored."""
        if self._is_constant:
            return call_key(cache, self.args, self.kwargs)
        args = tuple(_argument(part, numbers) for part in self.args)
        return call_key(cache, args, tuple((name, _argument(part, numbers)) for name, part in self.kwargs))

    @cached_property
    def _is_constant(self) -> bool:
        """Whether all arguments are constants, the same at each call."""
        return all(map(is_constant, (*self.args, *(part for _, part in self.kwargs))))

    def __str__(self) -> str:
        parts = [*map(_text, self.args), *(f"{name}={_text(part)}" for name, part in self.kwargs)]
        return ", ".join(parts)


def _argument(part: Any, numbers: Numbers) -> Any:
    match part:
        case Ref():
            return part.get()
        case CachedCall():
            return part.held(numbers)
        case Computed():
            return _compute(part, numbers)
        case Items():
            return part.cls([_argument(item, numbers) for item in part.items])
    return part


def _text(part: Any) -> str:
    match part:
        case Ref() | Computed():
            return part.text
        case Items():
            return f"({', '.join(map(_text, part.items))},)"
    return str(part) if isinstance(part, CachedCall) else repr(part)


@dataclass(frozen=True, eq=False)
class CachedCall:
    """A call of a cached function, and its possible entries: none, or `result` (ABSENT: none only)."""

    cache: Ref
    key: CallKey
    result: Any

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        return sources_of(self)

    def held(self, numbers: Numbers = NO_NUMBERS) -> Any:
        """Return the present entry; LookupError if there is none."""
        cache: Any = self.cache.get()
        found = cached_entry(cache, self.key.of(cache, numbers))
        if found is ABSENT:
            raise LookupError(f"{self} is not held")
        return found

    def holds(self, cache: Any, *numbers: Any) -> bool:
        """Whether a cache has no entry for the call, or the expected one."""
        if not self.cache.refers_to(cache):
            return False
        known = dict(zip(self.sources, numbers, strict=True)) if numbers else NO_NUMBERS
        try:
            found = cached_entry(cache, self.key.of(cache, known))
        except LookupError:
            return True
        if found is ABSENT or found is self.result:
            return True
        return self.result is not ABSENT and matches(found, self.result, known)

    def __str__(self) -> str:
        return f"{self.cache.text}({self.key})"
