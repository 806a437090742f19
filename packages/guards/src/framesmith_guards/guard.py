"""Guards, and sets of them; a guard is one condition on one source's value that must hold at every later call."""

from __future__ import annotations

import traceback
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from framesmith_guards.errors import GuardError
from framesmith_guards.kinds.state import BY_KIND, USUAL_KINDS
from framesmith_guards.kinds.table import GuardKind, describe_expected, kind_named
from framesmith_guards.sources import GlobalStateSource, GuardSource, ShapeEnvSource, Source, origin_of
from framesmith_guards.stacks import Location, current_location
from framesmith_guards.torch_adapter import unstable
from framesmith_guards.values.constants import is_constant, typed_key
from framesmith_guards.values.refs import describe


@dataclass
class ExportInfo:
    """The texts of a guard's checks; filled when the text of a program with the guard is rendered."""

    code: list[str] = field(default_factory=list)

    def record(self, code: str) -> None:
        if code not in self.code:
            self.code.append(code)


def _key_of(expected: object) -> Hashable:
    if is_constant(expected):
        return typed_key(expected)
    return tuple(map(_key_of, expected)) if type(expected) is tuple else expected


@dataclass(frozen=True, eq=False, init=False)
class Guard:
    """A kind applied to a source; two guards are equal if they check the same.

    `expected` is snapshotted on construction (see freezing.py); GuardError if it cannot be checked soundly. `location`
    is the guard's line in the user's program, `stack` that in the compiler; `export` serves those who export guards.
    """

    source: Source
    kind: GuardKind
    expected: Any
    location: Location | None
    stack: traceback.StackSummary | None
    export: ExportInfo
    _key: Hashable = field(repr=False)

    def __init__(
        self,
        source: Source,
        kind: str | GuardKind,
        expected: object = None,
        *,
        location: Location | None = None,
        stack: traceback.StackSummary | None = None,
    ) -> None:
        if not isinstance(source, Source):
            raise GuardError(f"a guard is about a Source, not {describe(source)}")
        kind = kind_named(kind)
        try:
            frozen = kind.freeze(expected)
        except GuardError as error:
            raise GuardError(f"{kind.name} on {source.name}: {error}") from None
        set_field = object.__setattr__
        set_field(self, "source", source)
        set_field(self, "kind", kind)
        set_field(self, "expected", frozen)
        set_field(self, "location", location)
        set_field(self, "stack", stack)
        set_field(self, "export", ExportInfo())
        set_field(self, "_key", (source, kind.name, _key_of(frozen)))

    def note_origin(self, location: Location | None, compiler: traceback.StackSummary | None) -> None:
        """Set the guard's location and stack, unless they are known already."""
        if self.location is None and location is not None:
            object.__setattr__(self, "location", location)
        if self.stack is None and compiler is not None:
            object.__setattr__(self, "stack", compiler)

    def at(self, source: Source) -> Guard:
        """Return the guard that the value at another source meets the same condition."""
        return Guard(source, self.kind, self.expected)

    @property
    def origin(self) -> GuardSource:
        return origin_of(self.source)

    @property
    def operands(self) -> tuple[Source, ...]:
        """The other sources that the guard relates to its own."""
        return self.kind.operands(self.expected)

    @property
    def subject(self) -> str:
        """The guarded value in the user's terms; of a condition on sizes and numbers, these."""
        about = self.operands if isinstance(self.source, ShapeEnvSource) else ()
        return " and ".join(source.name for source in about) or self.source.name

    def explain(self, args: Mapping[str, object], function: FunctionType) -> str | None:
        """Return why the guard misses for this call, by the reference predicates; None if it holds."""
        if self.kind.about_state:
            return self._explain(args, function)
        with unstable.DisableTorchFunction():
            return self._explain(args, function)

    def _explain(self, args: Mapping[str, object], function: FunctionType) -> str | None:
        try:
            sources = (self.source, *self.operands)
            loaded = {source: source.evaluate(args, function) for source in dict.fromkeys(sources)}
            values = [loaded[source] for source in sources]  # a value named twice is one object, as for a program
        except Exception as error:
            return f"{self.subject}: cannot be evaluated: {type(error).__name__}: {error}"
        try:
            if self.kind.holds(values[0], self.expected, *values[1:]):
                return None
            return f"{self.subject}: {self.kind.explain(values[0], self.expected, *values[1:])}"
        except Exception as error:
            return f"{self.subject}: {self.kind.name} cannot be checked: {type(error).__name__}: {error}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Guard) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        return f"{self.kind.name} {self.source.name}: {describe_expected(self.expected)}"


class GuardsSet:
    """Guards in the order they were added, each once.

    A guard gets the location of the trace that adds it and, with `debug_stacks`, the compiler's stack.
    """

    def __init__(self, guards: Iterable[Guard] = (), *, debug_stacks: bool = False) -> None:
        self._guards: dict[Guard, None] = dict.fromkeys(guards)
        self._debug_stacks = debug_stacks

    def add(self, guard: Guard) -> bool:
        if guard in self._guards:
            return False
        self._guards[guard] = None
        compiler = traceback.StackSummary.from_list(traceback.extract_stack()[:-1]) if self._debug_stacks else None
        guard.note_origin(current_location(), compiler)
        return True

    def update(self, *others: Iterable[Guard]) -> None:
        for guards in others:
            for guard in guards:
                self.add(guard)

    def __contains__(self, guard: object) -> bool:
        return guard in self._guards

    def __iter__(self) -> Iterator[Guard]:
        return iter(list(self._guards))

    def __len__(self) -> int:
        return len(self._guards)

    def __bool__(self) -> bool:
        return bool(self._guards)

    def __sub__(self, other: Iterable[Guard]) -> GuardsSet:
        dropped = set(other)
        return GuardsSet(guard for guard in self._guards if guard not in dropped)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GuardsSet) and self._guards.keys() == other._guards.keys()

    __hash__ = None  # type: ignore[assignment]


def state_guards(kinds: Iterable[str] = USUAL_KINDS) -> list[Guard]:
    """Return guards that torch's state stays as it is now. GuardError for a kind that is not about state."""
    source = GlobalStateSource()
    found = []
    for kind in map(kind_named, kinds):
        if not kind.about_state:
            raise GuardError(f"{kind.name} is not about global state")
        found.append(Guard(source, kind, BY_KIND[kind.name].read()))
    return found
