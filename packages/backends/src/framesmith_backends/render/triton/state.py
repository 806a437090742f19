"""The state of writing one Triton function: blocks of lines, and the names of what is known in each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from framesmith_backends.ir.expr import Load, Number
from framesmith_backends.ir.kernel import Kernel, Param
from framesmith_backends.ir.symbolic import size as sizes
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.ir.symbolic.size import Size, Sym, Symbol
from framesmith_backends.render.nested_lines import flat
from framesmith_backends.render.triton.tile import Tile


@dataclass(slots=True)
class Scope:
    """A block of lines at one indentation, and the values named in it."""

    lines: list[object]
    indent: int
    names: dict[object, str] = field(default_factory=dict)


@dataclass(slots=True)
class Writing:
    """The state of writing one kernel; `scopes[k]` is the body of the k-th open loop, 0 the function's own.

    `numbers` names what is known only at the call, in 64 bits. With `whole` a row of symbolic size is one block.
    `ref_levels` has for what is scanned in a loop which one it is.
    `integer` is the type of offsets in memory, `masks` has the mask of each axis of the tile, `rows` are
    the variables over which a row is gone through at present, `cells` what is combined down columns, `base` is the
    scope of the passes, which knows what they reduced, `past_l1` is what is read without a place in L1.
    """

    kernel: Kernel
    tile: Tile
    scopes: list[Scope]
    integer: str
    whole: bool = False
    level_of: dict[Var, int] = field(default_factory=dict)
    variables: dict[Var, str] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    ref_levels: dict[str, int] = field(default_factory=dict)
    pointers: dict[str, str] = field(default_factory=dict)
    numbers: dict[Symbol | Number, str] = field(default_factory=dict)
    stepping: set[Symbol] = field(default_factory=set)
    masks: dict[Var, str] = field(default_factory=dict)
    rows: tuple[Var, ...] = ()
    cells: dict[str, str] = field(default_factory=dict)
    base: int = 0
    past_l1: frozenset[Load] = frozenset()
    count: int = 0

    @property
    def here(self) -> Scope:
        return self.scopes[-1]

    def mask(self, variables: Collection[Var]) -> str | None:
        """The mask of the tile along its axes among the variables; None where all of it lies in the loops."""
        found = [mask for var, mask in self.masks.items() if var in variables]
        # `!= 0`: in Triton 3.9's interpreter `&` of a scalar and a block holds integers, which a mask must not.
        return f"(({' & '.join(found)}) != 0)" if len(found) > 1 else "".join(found) or None

    def fresh(self, text: str, scope: Scope) -> str:
        self.count += 1
        name = f"v{self.count}"
        self.line(f"{name} = {text}", scope)
        return name

    def line(self, text: str, scope: Scope | None = None) -> None:
        target = self.here if scope is None else scope
        target.lines.append("    " * target.indent + text)

    def source(self, head: str) -> str:
        """The text of the function whose first line is given."""
        return "\n".join([head, *flat(self.scopes[0].lines)]) + "\n"

    def open_loop(self, over: str, name: str) -> None:
        indent = self.here.indent
        self.scopes.append(Scope([], indent + 1))
        # The loop's head is written when it is closed, after what its body needs from outside.
        self.here.names["head"] = "    " * indent + f"for {name} in {over}:"

    def close(self, depth: int) -> None:
        """Close all loops but the outermost `depth - 1`."""
        while len(self.scopes) > depth:
            inner = self.scopes.pop()
            self.here.lines += [inner.names["head"], inner.lines]

    def size(self, size: Size) -> str:
        """The size as a 64-bit integer that is known in every block of lines; from parameters, once, if symbolic."""
        if not isinstance(size, Sym):
            return str(size)
        names = self.scopes[0].names
        if ("size", size) not in names:
            text = " + ".join(self._monomial(monomial, k) for monomial, k in size.terms)
            names["size", size] = text if text.isidentifier() else self.fresh(text, self.scopes[0])
        return names["size", size]

    def step(self, size: Size) -> str:
        """The size, where indices in memory or a mask of the lanes depend on it."""
        self.stepping |= sizes.symbols(size)
        return self.size(size)

    def _monomial(self, monomial: tuple[sizes.Atom, ...], k: int) -> str:
        factors = [self._atom(atom) for atom in monomial]
        return " * ".join([str(k), *factors] if k != 1 or not factors else factors)

    def _atom(self, atom: sizes.Atom) -> str:
        if isinstance(atom, Symbol):
            return self.numbers[atom]
        a, b = map(self.size, sizes.operands(atom))
        if isinstance(atom, sizes.Extreme):
            return f"tl.where({a} {'>' if atom.largest else '<'} {b}, {a}, {b})"
        if sizes.surely_at_least(atom.base, 0) and sizes.surely_positive(atom.divisor):
            return f"({a} // {b})"
        return f"fs.floor_quotient({a}, {b})"


def writing(kernel: Kernel, tile: Tile, params: Sequence[Param], far: bool, whole: bool = False) -> Writing:
    """The state before anything is written of a function of these parameters; `far`: offsets need 64 bits."""
    w = Writing(kernel, tile, [Scope([], 1)], "tl.int64" if far else "tl.int32", whole)
    w.pointers.update((param.name, f"p{k}") for k, param in enumerate(params))
    return w
