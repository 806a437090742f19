"""The symbols of one trace: the symbolic sizes and numbers of its inputs, and the facts assumed about them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from framesmith_aten.fakes.symbols import (
    attach_shape_env,
    bounds_of,
    computed_number,
    specialised_at,
    symbol_name,
    symbolic_fake,
    symbolic_number,
)
from framesmith_aten.symbolic import LARGEST_SYMBOL, hint_or_none, known_value
from framesmith_guards import GuardError, ShapeExpr, TensorPropertySource
from framesmith_guards.symbolic_guards import shape_guards

if TYPE_CHECKING:
    import torch

    from framesmith_guards import Guard, Location, Source
    from framesmith_guards.torch_adapter import FakeTensorMode


@dataclass(frozen=True, slots=True)
class Dims:
    """The symbolic dimensions of a tensor, some with a range (least, most), some unbacked.

    `required`: dimensions that the program has marked dynamic; the trace must not specialise them.
    """

    symbolic: Collection[int] = ()
    ranges: Mapping[int, tuple[int, int | None]] = field(default_factory=dict)
    unbacked: Collection[int] = ()
    required: Collection[int] = ()

    def __bool__(self) -> bool:
        return bool(self.symbolic) or bool(self.unbacked)


STATIC: Final = Dims()


@dataclass(frozen=True, slots=True)
class SymbolFact:
    """A symbol as the user knows it: its name, its source, and its value in the traced call.

    `least` and `most` are its bounds, given by the user or assumed by the trace; None for none.
    """

    name: str
    place: str
    now: int | float | bool | None
    least: int | float | None
    most: int | float | None

    def __str__(self) -> str:
        bounds = [f"at least {self.least}"] if self.least is not None else []
        bounds += [f"at most {self.most}"] if self.most is not None else []
        now = "not known before the call" if self.now is None else f"now {self.now}"
        return ", ".join((f"{self.name} = {self.place}: {now}", *bounds))


class ShapePolicy(Protocol):
    """The policy that decides which sizes and numbers are symbolic."""

    @property
    def allows_symbols(self) -> bool:
        """Whether anything may be symbolic."""

    def observe_tensor(self, tensor: torch.Tensor, source: Source) -> Dims:
        """Record the sizes of a tensor found at `source`, and return its symbolic dimensions."""

    def observe_number(self, number: int | float, source: Source) -> bool:
        """Record a number found at `source`, and return whether it is symbolic."""

    def expect_changes(self, source: Source) -> None:
        """Record that the number at `source` will have changed: it is symbolic from the next trace on."""


class Symbols:
    """The symbols among the inputs of one trace."""

    def __init__(self, mode: FakeTensorMode, policy: ShapePolicy) -> None:
        self._mode = mode
        self._policy = policy
        self.tensors: list[tuple[Source, torch.Tensor]] = []
        self.numbers: list[tuple[Source, Any]] = []
        self._required: list[tuple[Source, Any, int]] = []
        #: Unbacked sizes, on which the program allows no decision, with their sources.
        self.undecided: dict[Source, Any] = {}

    def tensor(self, real: torch.Tensor, source: Source) -> torch.Tensor | None:
        """Return a fake with symbolic sizes for a tensor; None if all its sizes are static."""
        dims = self._policy.observe_tensor(real, source)
        if not dims:
            return None
        fake = symbolic_fake(self._mode, real, source, dims.symbolic, ranges=dims.ranges, unbacked=dims.unbacked)
        self.tensors.append((source, fake))
        self.undecided |= {TensorPropertySource(source, "size", dim): fake.size(dim) for dim in dims.unbacked}
        self._required += [(source, fake.size(dim), dim) for dim in dims.required]
        return fake

    def violated(self) -> tuple[str, Location | None] | None:
        """Return a message about the first size marked dynamic that was specialised, and its line; or None."""
        for source, size, dim in self._required:
            known = size if isinstance(size, int) else known_value(size)
            if known is not None:
                place = f"{source.name}.size({dim})"
                if isinstance(size, int):
                    return (
                        f"{place} is marked dynamic, and is {known}: sizes 0 and 1 are always specialised",
                        None,
                    )
                return f"{place} is marked dynamic, and has to be {known} here", specialised_at(
                    attach_shape_env(self._mode), size
                )
        return None

    def decided_at(self, place: Source) -> Location | None:
        """Return the line that specialised one of `undecided`."""
        return specialised_at(attach_shape_env(self._mode), self.undecided[place])

    def number(self, real: int | float, source: Source) -> Any:
        """Return the symbol of a number; None if it is static."""
        if not self._policy.observe_number(real, source):
            return None
        number = symbolic_number(self._mode, real, source, below=LARGEST_SYMBOL)
        self.numbers.append((source, number))
        return number

    def expect_changes(self, source: Source) -> None:
        """Note that the number at `source` will have changed at later calls."""
        self._policy.expect_changes(source)

    def allow_unbacked(self) -> bool:
        """Allow unbacked symbols in this trace; False where they are allowed already, or nothing may be symbolic."""
        if self._mode.shape_env is not None or not self._policy.allows_symbols:
            return False
        attach_shape_env(self._mode)
        return True

    def computed(self, name: str, operands: Sequence[Any]) -> Any:
        """Return the symbol of the result of a function of `framesmith_guards.kinds.shapes.EXACT`."""
        return computed_number(self._mode, name, operands)

    def expression(self, number: torch.SymInt) -> ShapeExpr | None:
        """Return an integer as an expression of the inputs' sizes and numbers; None of an unbacked one."""
        found = {symbol_name(symbol): source for source, symbol in self._sources()}
        try:
            return ShapeExpr.of(number.node.expr, {name: source for name, source in found.items() if name is not None})
        except GuardError:
            return None

    def hint_at(self, source: Source) -> int | float | bool | None:
        """Return the value at the source of a symbol in the traced call."""
        return next((hint_or_none(symbol) for place, symbol in self._sources() if place == source), None)

    def _sources(self) -> Iterator[tuple[Source, Any]]:
        """Return the sources of sizes and numbers, with their symbols."""
        for source, fake in self.tensors:
            yield from ((TensorPropertySource(source, "size", dim), size) for dim, size in enumerate(fake.shape))
        yield from self.numbers

    def guards(self) -> Iterable[Guard]:
        """Return guards for all facts assumed by the trace and by the compilation of its graph."""
        env = self._mode.shape_env
        return () if env is None else shape_guards(env, self.tensors, self.numbers)

    def facts(self) -> list[SymbolFact]:
        """Return the remaining symbols, for display."""
        if self._mode.shape_env is None:
            return []
        sizes = ((f"{source.name}.size({dim})", n) for source, each in self.tensors for dim, n in enumerate(each.shape))
        found: dict[str, SymbolFact] = {}
        for place, number in (*sizes, *((source.name, number) for source, number in self.numbers)):
            name = symbol_name(number)
            if name is not None and name not in found:
                found[name] = SymbolFact(name, place, hint_or_none(number), *bounds_of(number))
        return list(found.values())
