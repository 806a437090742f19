"""Sources: frozen, interned steps of a path, which can be evaluated, printed and rendered.

A source knows nothing of bytecode, tracing or guards.

Note [Adding a source]: a source is loaded in four ways, which must agree. `read` is the meaning; `expression`, its
Python text, runs in the checks' text; a row of `LOADS` (programs/native/rows.py) makes it native, else native programs
call `read`; a row of `LOADERS` (framesmith_sideeffects' load_source.py) is the bytecode of compiled code, and a source
without one is in `NOT_LOADABLE` there, with the reason.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from weakref import WeakValueDictionary

from framesmith_guards.errors import GuardError
from framesmith_guards.values.constants import typed_key


class Names(Protocol):
    """The names of the program text that a source is rendered into."""

    def argument(self, name: str) -> str:
        """Return the expression of an argument; GuardError if the function has none of that name."""

    def freevar(self, name: str) -> str:
        """Return the expression of a free variable's cell; GuardError if the function has none of that name."""

    def bind(self, value: object, hint: str) -> str:
        """Return an expression for a Python value: a literal, or a name in the program's namespace."""


class _Interned(type):
    """Makes constructor calls with equal fields return one object, so that sources compare by identity."""

    _lock = threading.Lock()
    _known: WeakValueDictionary[object, Any] = WeakValueDictionary()

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        fields = cls.__dict__.get("__match_args__", ())
        if kwargs:
            extra = tuple(kwargs.pop(name) for name in fields[len(args) :] if name in kwargs)
            args += extra
            if kwargs:
                raise TypeError(f"{cls.__name__} has no field {next(iter(kwargs))!r}; its fields are {fields}")
        args += tuple(getattr(cls, name) for name in fields[len(args) :] if name in cls.__dict__)
        key = (cls, tuple(id(arg) if isinstance(arg, Source) else typed_key(arg) for arg in args))
        with _Interned._lock:
            known = _Interned._known.get(key)
            if known is None:
                known = super().__call__(*args)
                _Interned._known[key] = known
            return known


@dataclass(frozen=True, eq=False, repr=False)
class Source(metaclass=_Interned):
    """A path to a value. Two sources with equal fields are the same object."""

    if TYPE_CHECKING:

        @property
        def base(self) -> Source | None:
            """The source this one starts from; None for a root."""

    def read(self, base: Any, args: Mapping[str, object], function: FunctionType) -> object:
        """Return the value, given the value of `base` (None for a root). Any exception means: not there."""
        raise NotImplementedError

    def expression(self, base: str, names: Names) -> str:
        """Return Python text of `read`, given the text of the base."""
        raise NotImplementedError

    def label(self, base: str) -> str:
        """Return readable Python text of this step, given that of the base."""
        raise NotImplementedError

    def evaluate(self, args: Mapping[str, object], function: FunctionType) -> object:
        """Return the value of the path for a call of `function` with `args` by name."""
        base = None if self.base is None else self.base.evaluate(args, function)
        return self.read(base, args, function)

    @cached_property
    def name(self) -> str:
        """Readable Python text, such as `L['self'].weight`."""
        return self.label("" if self.base is None else self.base.name)

    @cached_property
    def root(self) -> Source:
        return self if self.base is None else self.base.root

    @cached_property
    def depth(self) -> int:
        return 0 if self.base is None else self.base.depth + 1

    def chain(self) -> Iterator[Source]:
        """This source and its bases, root last."""
        source: Source | None = self
        while source is not None:
            yield source
            source = source.base

    def moved(self, starts: dict[Source, Source]) -> Source | None:
        """Return the same steps from another source: `starts` maps sources to others. None if it leads through none.

        Of several starts on the way, the last one counts. The paths found are added to `starts`.
        """
        found = starts.get(self)
        if found is not None or self.base is None:
            return found
        base = self.base.moved(starts)
        if base is None:
            return None
        made = starts[self] = type(self)(*(base if one is self.base else one for one in self.fields()))
        return made

    def fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), self.fields())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


@dataclass(frozen=True, eq=False, repr=False)
class Root(Source):
    """A source that starts a path."""

    base: ClassVar[None] = None


@dataclass(frozen=True, eq=False, repr=False)
class Step(Source):
    """A source one step away from another."""

    base: Source

    def __post_init__(self) -> None:
        if not isinstance(self.base, Source):
            raise GuardError(f"{type(self).__name__} starts from a Source, not from {type(self.base).__name__}")
