"""A builder with memory and control flow, for functions whose loops are not those of a kernel.

Variables are cells of the stack, which LLVM turns into registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from framesmith_backends.render.llvm.builder import Builder, Value, constant

ZERO = constant(0, "i64")


@dataclass(slots=True)
class Writer(Builder):
    """Lines of one function; `entry` has the stack cells, which stand before all else."""

    entry: list[object] = field(default_factory=list)

    def cell(self, start: Value) -> Value:
        """A variable that holds `start` now."""
        name = self.name()
        self.entry.append(f"{name} = alloca {start.type}")
        place = Value(name, "ptr")
        self.store(start, place, 0)
        return place

    def at(self, base: Value, index: Value | int, kind: str = "float") -> Value:
        """The address of an element."""
        offset = index if isinstance(index, Value) else constant(index, "i64")
        return self.emit(f"getelementptr {kind}, {base.typed}, {offset.typed}", "ptr")

    def load(self, place: Value, kind: str, lanes: int = 1, align: int = 4) -> Value:
        aligned = f", align {align}" if align else ""
        return self.emit(f"load {Value('', kind, lanes).type}, {place.typed}{aligned}", kind, lanes)

    def store(self, value: Value, place: Value, align: int = 4) -> None:
        self.line(f"store {value.typed}, {place.typed}" + (f", align {align}" if align else ""))

    def read(self, cell: Value, kind: str, lanes: int = 1) -> Value:
        return self.load(cell, kind, lanes, 0)

    def most(self, a: Value, b: Value | int) -> Value:
        a, other = self.same(a, b)
        return self.select(self.compare("ugt", a, other), a, other)

    def rounded_up(self, a: Value, b: int) -> Value:
        return self.mul(self.binary("udiv", self.add(a, b - 1), b), b)

    def first_lanes(self, count: Value, lanes: int) -> Value:
        """The mask of the first `count` lanes; all of them for a count beyond."""
        steps = Value("<" + ", ".join(f"i64 {k}" for k in range(lanes)) + ">", "i64", lanes)
        return self.compare("ult", steps, self.splat(count, lanes))

    def prefetch(self, place: Value, written: bool = False) -> None:
        """Ask for the cache line of an address, which need not be one."""
        self.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.line(f"call void @llvm.prefetch.p0({place.typed}, i32 {int(written)}, i32 3, i32 1)")

    def is_null(self, address: Value) -> Value:
        return self.compare("eq", self.emit(f"ptrtoint {address.typed} to i64", "i64"), 0)

    def is_set(self, address: Value) -> Value:
        """Whether an address is not null."""
        return self.compare("ne", self.emit(f"ptrtoint {address.typed} to i64", "i64"), 0)

    def negated(self, condition: Value) -> Value:
        return self.binary("xor", condition, constant(1, "i1"))

    def call(self, name: str, *given: Value) -> None:
        """Call a function of the module that returns nothing."""
        self.line(f"call void {name}({', '.join(one.typed for one in given)})")

    def _label(self, hint: str) -> str:
        return f"{hint}{self.name()[2:]}"

    @contextmanager
    def loop(self, first: Value, last: Value, step: Value | int = 1) -> Iterator[Value]:
        """From `first` while below `last`."""
        cell = self.cell(first)
        with self.repeat(lambda: self.compare("ult", self.read(cell, "i64"), last)):
            now = self.read(cell, "i64")
            yield now
            self.store(self.add(now, step), cell, 0)

    @contextmanager
    def repeat(self, condition: Callable[[], Value]) -> Iterator[None]:
        """As long as the condition holds, which is computed before each time."""
        head, body, done = self._label("head"), self._label("body"), self._label("done")
        self.line(f"br label %{head}")
        self.line(f"{head}:")
        self.line(f"br i1 {condition().text}, label %{body}, label %{done}")
        self.line(f"{body}:")
        yield
        self.line(f"br label %{head}")
        self.line(f"{done}:")

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        then, done = self._label("then"), self._label("done")
        self.line(f"br i1 {condition.text}, label %{then}, label %{done}")
        self.line(f"{then}:")
        yield
        self.line(f"br label %{done}")
        self.line(f"{done}:")

    def function(self, head: str, result: str = "ret void") -> str:
        """All of it as a function."""
        lines = [*self.entry, *self.out]
        return "\n".join([f"{head} #0 {{", "entry:", *(f"  {line}" for line in lines), f"  {result}", "}"])


def parameters(*names: str) -> dict[str, Value]:
    """Values named `kind name`, as the parameters of a function are written."""
    pairs = [name.split() for name in names]
    return {name: Value(f"%{name}", kind) for kind, name in pairs}


def signature(names: Sequence[str]) -> str:
    """The parameters of a function, named as for `parameters`."""
    return ", ".join(name.replace(" ", " %") for name in names)
