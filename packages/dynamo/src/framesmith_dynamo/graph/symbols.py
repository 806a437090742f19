"""The symbols of one trace: which sizes and numbers of its inputs have one, and what the trace came to rely on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from framesmith_aten.fakes.symbols import (
    attach_shape_env,
    bounds_of,
    computed_number,
    hint_of,
    specialised_at,
    symbol_name,
    symbolic_fake,
    symbolic_number,
)
from framesmith_aten.symbolic import LARGEST_SYMBOL, known_value
from framesmith_guards import GuardError, ShapeExpr, TensorPropertySource
from framesmith_guards.symbolic_guards import shape_guards

if TYPE_CHECKING:
    import torch

    from framesmith_guards import Guard, Location, Source
    from framesmith_guards.torch_adapter import FakeTensorMode


@dataclass(frozen=True, slots=True)
class Dims:
    """Dimensions of a tensor whose sizes are symbols: with a range (least, most) of its own, or without a value.

    `required`: those that the program has promised to change; the trace must not come to need one size of them.
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
    """A symbol as its user knows it: its name, where the number is found, and what it was in the call compiled for.

    `least` and `most` are the bounds that were given, or that the trace came to rely on; None for none.
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


class Policy(Protocol):
    """What is taken to change from call to call."""

    @property
    def allows_symbols(self) -> bool:
        """Whether anything at all may be a symbol."""

    def dims(self, tensor: torch.Tensor, source: Source) -> Dims:
        """The dimensions of a tensor found at `source` that are symbols."""

    def is_symbol(self, number: int | float, source: Source) -> bool:
        """Whether a number found at `source` is a symbol."""


class Symbols:
    """The symbols among the inputs of one trace."""

    def __init__(self, mode: FakeTensorMode, policy: Policy) -> None:
        self._mode = mode
        self._policy = policy
        self.tensors: list[tuple[Source, torch.Tensor]] = []
        self.numbers: list[tuple[Source, Any]] = []
        self._required: list[tuple[Source, Any, int]] = []
        #: The sizes by which the program has promised that nothing is decided, with their places.
        self.undecided: dict[Source, Any] = {}

    def tensor(self, real: torch.Tensor, source: Source) -> torch.Tensor | None:
        """A fake with symbolic sizes for a tensor; None for one whose sizes stay."""
        dims = self._policy.dims(real, source)
        if not dims:
            return None
        fake = symbolic_fake(self._mode, real, source, dims.symbolic, ranges=dims.ranges, unbacked=dims.unbacked)
        self.tensors.append((source, fake))
        self.undecided |= {TensorPropertySource(source, "size", dim): fake.size(dim) for dim in dims.unbacked}
        self._required += [(source, fake.size(dim), dim) for dim in dims.required]
        return fake

    def violated(self) -> tuple[str, Location | None] | None:
        """The first size that must not be one number and has come to be, in words, and the line that made it so."""
        for source, size, dim in self._required:
            known = size if isinstance(size, int) else known_value(size)
            if known is not None:
                place = f"{source.name}.size({dim})"
                if isinstance(size, int):
                    return (
                        f"{place} is marked dynamic, and is {known}: sizes 0 and 1 are always compiled for alone",
                        None,
                    )
                return f"{place} is marked dynamic, and has to be {known} here", specialised_at(
                    attach_shape_env(self._mode), size
                )
        return None

    def decided_at(self, place: Source) -> Location | None:
        """The line that made one of `undecided` known, or another one's."""
        return specialised_at(attach_shape_env(self._mode), self.undecided[place])

    def number(self, real: int | float, source: Source) -> Any:
        """The symbol of a number; None for one that stays."""
        if not self._policy.is_symbol(real, source):
            return None
        number = symbolic_number(self._mode, real, source, below=LARGEST_SYMBOL)
        self.numbers.append((source, number))
        return number

    def begin(self) -> bool:
        """Let data become sizes and numbers in this trace; False where it does already, or nothing may be a symbol."""
        if self._mode.shape_env is not None or not self._policy.allows_symbols:
            return False
        attach_shape_env(self._mode)
        return True

    def computed(self, name: str, operands: Sequence[Any]) -> Any:
        """The symbol of what a function of `framesmith_guards.kinds.shapes.EXACT` gives."""
        return computed_number(self._mode, name, operands)

    def expression(self, number: torch.SymInt) -> ShapeExpr | None:
        """An integer as an expression of the inputs' sizes and numbers; None of an unbacked one."""
        found = {symbol_name(symbol): source for source, symbol in self._places()}
        try:
            return ShapeExpr.of(number.node.expr, {name: source for name, source in found.items() if name is not None})
        except GuardError:
            return None

    def hint_at(self, source: Source) -> int | float | bool | None:
        """What is, in the call compiled for, at the source of a symbol."""
        return next((hint_of(symbol) for place, symbol in self._places() if place == source), None)

    def _places(self) -> Iterator[tuple[Source, Any]]:
        """The sources of sizes and numbers, with their symbols."""
        for source, fake in self.tensors:
            yield from ((TensorPropertySource(source, "size", dim), size) for dim, size in enumerate(fake.shape))
        yield from self.numbers

    def guards(self) -> Iterable[Guard]:
        """What the trace, and the compilation of its graph, came to rely on."""
        env = self._mode.shape_env
        return () if env is None else shape_guards(env, self.tensors, self.numbers)

    def facts(self) -> list[SymbolFact]:
        """The symbols that are left, for those who want to see them."""
        if self._mode.shape_env is None:
            return []
        sizes = ((f"{source.name}.size({dim})", n) for source, each in self.tensors for dim, n in enumerate(each.shape))
        found: dict[str, SymbolFact] = {}
        for place, number in (*sizes, *((source.name, number) for source, number in self.numbers)):
            name = symbol_name(number)
            if name is not None and name not in found:
                found[name] = SymbolFact(name, place, hint_of(number), *bounds_of(number))
        return list(found.values())
