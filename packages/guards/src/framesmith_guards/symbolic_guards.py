"""Our sources as torch's own, and a ShapeEnv's assumptions as SHAPE guards."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import sympy
import torch
from sympy.core.function import AppliedUndef

from framesmith_guards.errors import GuardError
from framesmith_guards.guard import Guard
from framesmith_guards.kinds.shapes import NEVER_RAISE, ShapeExpr, gives
from framesmith_guards.sources import GuardSource, ShapeEnvSource, Source, TensorPropertySource, origin_of
from framesmith_guards.torch_adapter import TorchGuardSource, TorchSource, ValueRanges, unstable

if TYPE_CHECKING:
    from framesmith_guards.stacks import Location

_TORCH_ORIGINS = {
    GuardSource.LOCAL: TorchGuardSource.LOCAL,
    GuardSource.SHAPE_ENV: TorchGuardSource.SHAPE_ENV,
}


@dataclass(frozen=True)
class AdaptedSource(TorchSource):
    """One of our sources with the interface of torch's."""

    ours: Source

    @cached_property
    def guard_source(self) -> TorchGuardSource:
        """The nearest of torch's kinds."""
        return _TORCH_ORIGINS.get(origin_of(self.ours), TorchGuardSource.GLOBAL)

    @property
    def _name_template(self) -> str:
        return self.ours.name


def to_torch(source: Source) -> AdaptedSource:
    """Return our source as one of torch's."""
    return AdaptedSource(source)


@dataclass
class EnvNotes:
    """Facts about a ShapeEnv's numbers that torch's own does not record; `framesmith_aten.fakes.symbols` adds them."""

    #: The calls of numbers that are opaque to sympy, by the symbols of their results.
    computed: dict[sympy.Symbol, sympy.Basic] = field(default_factory=dict)
    #: Conditions on unbacked numbers answered as torch's rules presume, with the answers.
    presumed: list[tuple[torch.SymBool, bool]] = field(default_factory=list)
    #: Results of operations on numbers, torch's `SymNode`s, by operation and operands.
    number_results: dict[Any, Any] = field(default_factory=dict)
    #: Recipes of operators' fake results, by call; False where there is none.
    call_results: dict[Any, Any] = field(default_factory=dict)


def notes_of(env: Any) -> EnvNotes | None:
    """Return the notes of a ShapeEnv; None of torch's own, or of None."""
    found: EnvNotes | None = getattr(env, "framesmith_notes", None)
    return found


@dataclass
class _Symbols:
    """The first source of each symbol, and the equalities that its other sources must satisfy."""

    shape_env: Any
    sources: dict[str, Source] = field(default_factory=dict)
    equalities: list[tuple[Source, sympy.Expr, Location | None]] = field(default_factory=list)

    @cached_property
    def computed(self) -> dict[sympy.Symbol, sympy.Basic]:
        """See EnvNotes."""
        notes = notes_of(self.shape_env)
        return {} if notes is None else notes.computed

    def meet(self, value: Any, source: Source) -> None:
        """Record that `source` gives this size or number; plain numbers need no relation."""
        node = getattr(value, "node", None)
        if node is None:
            return
        expr = self.opened(node._expr)
        if isinstance(expr, sympy.Symbol) and expr.name not in self.sources:
            self.sources[expr.name] = source
        else:
            self.equalities.append((source, expr, self.settled_at(node._expr)))

    def settled_at(self, expr: sympy.Basic) -> Location | None:
        """Return the user's line that specialised one of an expression's symbols."""
        reasons = map(self.shape_env.replacements_slocs.get, expr.free_symbols)
        return next((one.location for one in reasons if getattr(one, "location", None) is not None), None)

    def opened(self, expr: sympy.Basic) -> sympy.Basic:
        """Return an expression of inputs' symbols alone, with calls for computed numbers and known values.

        Torch may have solved an input's symbol for a computed one, or a computed one for a later one: the first
        remains, and the second is replaced by its call, which is about earlier symbols.
        """
        while (found := expr.xreplace({symbol: self._known(symbol) for symbol in expr.free_symbols})) != expr:
            expr = found
        return expr

    def _known(self, symbol: sympy.Symbol) -> sympy.Basic:
        known = self.shape_env.replace(symbol)
        return known if self.computed.keys().isdisjoint(known.free_symbols) else self.computed.get(symbol, symbol)


def _meet_tensor(symbols: _Symbols, source: Source, tensor: torch.Tensor) -> None:
    for dim in range(tensor.dim()):
        symbols.meet(tensor.size(dim), TensorPropertySource(source, "size", dim))
    for dim in range(tensor.dim()):
        symbols.meet(tensor.stride(dim), TensorPropertySource(source, "stride", dim))
    symbols.meet(tensor.storage_offset(), TensorPropertySource(source, "storage_offset"))


def shape_guards(
    shape_env: Any,
    tensors: Iterable[tuple[Source, torch.Tensor]],
    scalars: Iterable[tuple[Source, Any]] = (),
) -> list[Guard]:
    """Return a ShapeEnv's assumptions as SHAPE guards.

    `tensors` are the fake inputs with their sources, `scalars` symbolic numbers with theirs. The guards state that
    sizes, strides and offsets are the expressions found in the fake inputs, that each symbol is in its range, and that
    every condition evaluated while tracing still holds. GuardError for one about a symbol of no input.
    """
    symbols = _Symbols(shape_env)
    tensors, scalars = list(tensors), list(scalars)
    for source, tensor in tensors:
        for dim in range(tensor.dim()):
            symbols.meet(tensor.size(dim), TensorPropertySource(source, "size", dim))
    symbols.equalities.clear()
    for source, number in scalars:
        symbols.meet(number, source)
    for source, tensor in tensors:
        _meet_tensor(symbols, source, tensor)
    evaluated, lines = _evaluated(symbols)
    found = (*_equalities(symbols), *_settled(symbols), *((each, None) for each in _given(symbols)))
    guards = [Guard(ShapeEnvSource(), "SHAPE", each, location=location) for each, location in found]
    return [*guards, *_ranges(symbols, lines), *evaluated]


def _equalities(symbols: _Symbols) -> Iterator[tuple[ShapeExpr, Location | None]]:
    number = sympy.Symbol("value", integer=True)
    for source, expr, location in symbols.equalities:
        if isinstance(expr, sympy.Symbol) and symbols.sources.get(expr.name) is source:
            continue
        sources = ChainMap({"value": source}, symbols.sources)
        yield _condition(sympy.Eq(number, expr, evaluate=False), sources), location


_Lines = dict[tuple[sympy.Basic, type[sympy.Rel]], "Location"]
"""By a symbol and the relation to its bound, the first line that relies on the bound."""


def _ranges(symbols: _Symbols, lines: _Lines) -> Iterator[Guard]:
    for symbol, bounds in symbols.shape_env.var_to_range.items():
        if symbol.name not in symbols.sources:
            continue
        for relation, bound, free in ((sympy.Ge, bounds.lower, -sympy.oo), (sympy.Le, bounds.upper, sympy.oo)):
            if bound != free and type(bound).__name__ not in ("IntInfinity", "NegativeIntInfinity"):
                condition = _condition(relation(symbol, bound, evaluate=False), symbols.sources)
                yield Guard(ShapeEnvSource(), "SHAPE", condition, location=lines.get((symbol, relation)))


def _evaluated(symbols: _Symbols) -> tuple[list[Guard], _Lines]:
    """Return the conditions that the symbols' ranges do not imply, and the lines that rely on the ranges."""
    guards: list[Guard] = []
    lines: _Lines = {}
    for guard in symbols.shape_env.guards:
        expr = symbols.opened(guard.expr)
        location = getattr(guard.sloc, "location", None)
        if expr is sympy.true:
            continue
        ranges = symbols.shape_env.var_to_range
        if not (_is_of_integers(symbols, expr) and _follows(expr, ranges)):
            guards.append(Guard(ShapeEnvSource(), "SHAPE", _condition(expr, symbols.sources), location=location))
        elif location is not None:
            for symbol in expr.free_symbols:
                known = ranges[symbol]
                for relation, loose in (
                    (sympy.Ge, ValueRanges(-unstable.int_oo, known.upper)),
                    (sympy.Le, ValueRanges(known.lower, unstable.int_oo)),
                ):
                    if not _follows(expr, {**ranges, symbol: loose}):
                        lines.setdefault((symbol, relation), location)
    return guards, lines


def _is_of_integers(symbols: _Symbols, expr: sympy.Basic) -> bool:
    """Whether a condition is about integer inputs alone, in terms known to sympy."""
    known = all(symbol.is_integer and symbol.name in symbols.sources for symbol in expr.free_symbols)
    return known and not expr.has(AppliedUndef)


def _follows(expr: sympy.Basic, ranges: dict[Any, Any]) -> bool:
    """Whether a condition holds for all values in these ranges."""
    bounds = unstable.bound_sympy(expr, ranges)
    return bool(bounds.is_singleton()) and bounds.lower is sympy.true


def _settled(symbols: _Symbols) -> Iterator[tuple[ShapeExpr, Location | None]]:
    """Return the known values of computed numbers (`framesmith_aten.fakes.symbols`), or of inputs by them."""
    met = [symbol for symbol in symbols.shape_env.replacements if symbol.name in symbols.sources]
    for symbol in [*symbols.computed, *met]:
        known = symbols.shape_env.replace(symbol)
        if known != symbol:
            call = symbols.opened(symbols.computed.get(symbol, symbol))
            condition = _condition(sympy.Eq(call, symbols.opened(known), evaluate=False), symbols.sources)
            yield condition, symbols.settled_at(symbol)


def _given(symbols: _Symbols) -> Iterator[ShapeExpr]:
    """Return conditions that the calls of computed numbers raise nothing, used or not, and return the same types."""
    for number, computed in symbols.computed.items():
        if type(computed).__name__ not in NEVER_RAISE:
            call = symbols.opened(computed)
            if symbols.sources.keys() >= {symbol.name for symbol in call.free_symbols}:  # data is known in the graph
                yield _condition(gives(call, int if number.is_integer else float), symbols.sources)


def _condition(expr: sympy.Basic, sources: Mapping[str, Source]) -> ShapeExpr:
    try:
        return ShapeExpr.of(expr, sources)
    except GuardError as error:
        raise GuardError(f"a shape relation cannot be checked at a call: {error}") from None
