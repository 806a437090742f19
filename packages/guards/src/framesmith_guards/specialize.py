"""`specialize`: memoise any function on guarded properties of its arguments.

Tensors count by metadata, constants by value, containers by their elements, other objects by identity.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final, Generic, ParamSpec, TypeVar, overload

import torch

from framesmith_guards.errors import GuardError
from framesmith_guards.guard import Guard, state_guards
from framesmith_guards.programs.compiler import compile_guards
from framesmith_guards.programs.explaining import explain
from framesmith_guards.programs.program import CheckProgram
from framesmith_guards.sources import DictValueSource, ItemSource, LocalSource, Source
from framesmith_guards.values.constants import FROZEN_DICTS, is_constant

P = ParamSpec("P")
R = TypeVar("R")


def guards_of(value: object, source: Source) -> list[Guard]:
    """Return guards under which a later value at `source` is interchangeable with `value`."""
    if isinstance(value, torch.Tensor):
        return [Guard(source, "TENSOR_MATCH", value)]
    if is_constant(value):
        return [Guard(source, "EQUALS_MATCH", value)]
    items = _ITEMS.get(type(value))
    if items is None:
        return [Guard(source, "ID_MATCH", value)]
    shape, children = items(value, source)
    return [Guard(source, "TYPE_MATCH", type(value)), shape, *(g for child in children for g in guards_of(*child))]


def _signature(function: FunctionType) -> inspect.Signature:
    """Return the signature of a function; its annotations are not evaluated, they may name what is not there yet."""
    if hasattr(function, "__wrapped__") or hasattr(function, "__signature__"):
        return inspect.signature(function)
    bare = FunctionType(function.__code__, {}, function.__name__, function.__defaults__, function.__closure__)
    bare.__kwdefaults__ = function.__kwdefaults__
    return inspect.signature(bare)


Items = tuple[Guard, list[tuple[object, Source]]]


def _sequence(value: Any, source: Source) -> Items:
    children: list[tuple[object, Source]] = [(item, ItemSource(source, index)) for index, item in enumerate(value)]
    return Guard(source, "LENGTH", len(value)), children


def _mapping(value: Any, source: Source) -> Items:
    children: list[tuple[object, Source]] = [
        (item, DictValueSource(source, index)) for index, item in enumerate(value.values())
    ]
    return Guard(source, "DICT_KEYS", value), children


_ITEMS: Final[dict[type, Callable[[Any, Source], Items]]] = {
    tuple: _sequence,
    list: _sequence,
    dict: _mapping,
    OrderedDict: _mapping,
    **dict.fromkeys(FROZEN_DICTS, _mapping),
}


@dataclass(frozen=True)
class Entry(Generic[R]):
    """A remembered result and its check."""

    check: CheckProgram
    result: R


@dataclass(frozen=True)
class _Call:
    arguments: tuple[object, ...]
    function: FunctionType


class Specialized(Generic[P, R]):
    """A function that runs once for every set of guarded properties of its arguments."""

    def __init__(self, function: Callable[P, R], limit: int, state: bool) -> None:
        if not isinstance(function, FunctionType):
            raise GuardError(f"specialize() takes a Python function, not a {type(function).__name__}")
        if type(limit) is not int or limit < 1:
            raise GuardError(f"limit is the number of results to remember, a positive int, not {limit!r}")
        functools.update_wrapper(self, function)
        self._function: FunctionType = function
        self._signature: Final = _signature(function)
        self._names: Final = tuple(self._signature.parameters)
        self._limit = limit
        self._state = state
        self._lock = threading.Lock()
        self._entries: list[Entry[R]] = []

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        values = self._bind(*args, **kwargs)
        known = next((entry for entry in self._entries if entry.check(values, self._function)), None)
        if known is not None:
            return known.result
        result: R = self._function(*args, **kwargs)
        self._remember(Entry(self._compile(values), result))
        return result

    def _bind(self, *args: Any, **kwargs: Any) -> tuple[object, ...]:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return tuple(bound.arguments[name] for name in self._names)

    def _compile(self, values: Iterable[object]) -> CheckProgram:
        guards = state_guards() if self._state else []
        for name, value in zip(self._names, values, strict=True):
            guards += guards_of(value, LocalSource(name))
        return compile_guards(guards, self._names)

    def _remember(self, entry: Entry[R]) -> None:
        with self._lock:
            alive = [known for known in self._entries if known.check.dead is None]
            self._entries = [entry, *alive][: self._limit]

    @property
    def entries(self) -> tuple[Entry[R], ...]:
        return tuple(self._entries)

    def clear(self) -> None:
        with self._lock:
            self._entries = []

    def explain(self, *args: P.args, **kwargs: P.kwargs) -> str | None:
        """Return why no remembered result applies to these arguments, against the nearest; None if one does."""
        values = self._bind(*args, **kwargs)
        rows = explain(self._entries, _Call(values, self._function))
        if not rows:
            return "nothing is remembered"
        return "; ".join(rows[0].reasons) or None


@overload
def specialize(function: Callable[P, R]) -> Specialized[P, R]: ...


@overload
def specialize(
    function: None = None, *, limit: int = 8, state: bool = False
) -> Callable[[Callable[P, R]], Specialized[P, R]]: ...


def specialize(function: Any = None, *, limit: int = 8, state: bool = False) -> Any:
    """Decorate a function to run once per set of guarded properties of its arguments, then answer from memory.

    Tensors count by metadata only (type, dtype, device, layout, sizes, strides, ...), constants by value,
    tuples, lists and dicts by their elements, other objects by identity, held weakly. At most `limit` results are
    kept; with `state`, torch's global state (grad mode, autocast, ...) counts too. GuardError for an argument
    that can be neither compared nor weakly referenced.
    """
    if function is None:
        return functools.partial(Specialized, limit=limit, state=state)
    return Specialized(function, limit, state)
