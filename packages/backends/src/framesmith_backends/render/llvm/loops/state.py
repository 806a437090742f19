"""The state of writing one kernel as LLVM IR: open loops, values known in each, pointers and masks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from framesmith_backends.ir.expr import Expr, Load, Number
from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.ir.symbolic.size import Size, Sym, Symbol, surely_positive
from framesmith_backends.render.llvm.builder import Builder, Value
from framesmith_backends.render.llvm.loops.sizes import emit_size, not_zero
from framesmith_backends.target import Processor


@dataclass(slots=True)
class Level:
    """An open loop body: its lines, the values already computed in it, and whether it may not run at all.

    What is read in such a loop alone is not read outside: a tensor without elements has no memory.
    """

    lines: list[object] = field(default_factory=list)
    values: dict[object, Value] = field(default_factory=dict)
    may_be_empty: bool = False


@dataclass(slots=True)
class Rendering:
    """The state of writing one kernel. `levels[k]` is the body of the k-th loop, level 0 the parallel one."""

    kernel: Kernel
    lanes: int
    b: Builder
    target: Processor
    level_of: dict[Var, int] = field(default_factory=dict)
    levels: list[Level] = field(default_factory=list)
    variables: dict[Var, Value] = field(default_factory=dict)
    pointers: dict[str, Value] = field(default_factory=dict)
    refs: dict[str, Value] = field(default_factory=dict)
    # In tiles, a reduction's results lie in memory: the array, and the tile's first lane.
    arrays: dict[str, tuple[Value, Value, str]] = field(default_factory=dict)
    # Reads across rows, with their transposed tile.
    transposed: dict[Load, Value] = field(default_factory=dict)
    # Numbers known at the call, and the entry block, with what was computed of them.
    numbers: dict[Symbol | Number, Value] = field(default_factory=dict)
    entry: Level = field(default_factory=Level)
    depth: dict[Expr, int] = field(default_factory=dict)
    # Checks that fail set a byte each here.
    failed: Value | None = None
    mask: Value | None = None
    ref_level: int = 0
    # Whether a block's lanes, and columns in their arrays, lie as in Note [Deinterleaved]. Lanes under a mask never do.
    deinterleaved: bool = False
    columns_deinterleaved: bool = False

    @contextmanager
    def in_lanes(self, lanes: int, deinterleaved: bool) -> Iterator[None]:
        """Set the number of lanes and whether they are deinterleaved, within the block."""
        before = self.lanes, self.deinterleaved
        self.lanes, self.deinterleaved = lanes, deinterleaved
        yield
        self.lanes, self.deinterleaved = before

    def room(self, type_: str) -> Value:
        """The address of room on the stack for a value of LLVM's type."""
        cell = Value(self.b.name(), "ptr")
        self.entry.lines.append(f"{cell.text} = alloca {type_}, align 64")
        return cell

    def once(self, level: Level, key: object, make: Callable[[], Value]) -> Value:
        """The value that `make` writes, written once in a level's lines, and known there by the key."""
        if key not in level.values:
            outside, self.b.out = self.b.out, level.lines
            level.values[key] = make()
            self.b.out = outside
        return level.values[key]

    def at_entry(self, key: object, make: Callable[[], Value], known: bool = True) -> Value:
        """The value that `make` writes, once at the kernel's start where it is `known` there, else here."""
        return self.once(self.entry, key, make) if known else make()

    def size_of(self, size: Size) -> Value:
        """The size as an i64, known in every loop."""
        known = {symbol: value for symbol, value in self.numbers.items() if isinstance(symbol, Symbol)}
        return self.at_entry(size, lambda: emit_size(self.b, size, known), isinstance(size, Sym))

    def divisor_of(self, size: Size) -> Value:
        """The size as a divisor; 1 where it is 0, of which no quotient is used."""
        value, sure = self.size_of(size), not isinstance(size, Sym) or surely_positive(size)
        return value if sure else self.at_entry((size, "divisor"), lambda: not_zero(self.b, value))

    def enter(self, lines: list[object], var: Var | None, value: Value) -> None:
        """Write into `lines`, the body of a new innermost loop over `var`."""
        self.levels.append(Level(lines))
        if var is not None:
            self.set_variable(var, value)
        self.depth.clear()
        self.b.out = lines

    def set_variable(self, var: Var, value: Value) -> None:
        """Say what the variable of the innermost loop is in its body."""
        self.level_of[var] = len(self.levels) - 1
        self.variables[var] = value
        self.levels[-1].may_be_empty = not surely_positive(var.size)

    def first_reading_level(self) -> int:
        """The outermost level at which what the innermost loop reads may be read: see `Level`."""
        return max((at for at, level in enumerate(self.levels) if level.may_be_empty), default=0)

    def leave(self, lines: list[object]) -> None:
        """Back to writing into `lines`, around the loop entered last."""
        self.levels.pop()
        self.depth.clear()
        self.b.out = lines
