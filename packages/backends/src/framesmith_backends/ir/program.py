"""The lowered graph: definitions of tensors, element by element, and calls of ATen for everything else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import fx

from framesmith_aten import layouts
from framesmith_aten.graphs.numbers import ScalarOrigin
from framesmith_backends.ir.expr import Expr, Number, loads, symbols_and_numbers
from framesmith_backends.ir.symbolic.index import Ix, Var
from framesmith_backends.ir.symbolic.size import Size, Sym, Symbol, extreme, numel, symbols_of, where_not_empty
from framesmith_backends.ir.text import named_text


@dataclass(frozen=True, slots=True)
class Layout:
    """A tensor in memory: sizes, strides in elements, dtype name, device text. Dense from its data pointer."""

    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    dtype: str
    device: str

    @property
    def steps(self) -> tuple[Size, ...]:
        """The strides as they are where there are elements."""
        return tuple(map(where_not_empty, self.strides))

    @property
    def numel(self) -> Size:
        return numel(self.shape)


@dataclass(frozen=True, slots=True)
class BufferView:
    """A view of the buffer `source`, with an offset and strides in elements."""

    source: str
    offset: Size
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]

    def on(self, names: Mapping[str, str]) -> BufferView:
        """The view, of a buffer of another name."""
        return replace(self, source=names.get(self.source, self.source))

    def text(self) -> str:
        start = f"+{self.offset}" if self.offset != 0 else ""
        return f"{self.source}{start} by {list(self.strides)}"

    @property
    def transposed(self) -> BufferView:
        """The view with its last two dimensions exchanged."""
        *shape, m, n = self.shape
        *strides, down, right = self.strides
        return replace(self, shape=(*shape, n, m), strides=(*strides, right, down))


@dataclass(frozen=True, slots=True)
class Failure:
    """The exception of a check that does not hold: a Python exception by its name, and its message."""

    exception: str
    message: str


@dataclass(frozen=True, slots=True, eq=False)
class Def:
    """`name[axes] = body`, or a reduction of `body` over the variables in `reduced`.

    `domain` lists every loop variable, the reduced ones too, in the order of the data being read; `axes` has
    one entry for each dimension of the result: a variable of the domain, or None for a dimension of size 1.

    With a `failure` it is a check: a bool that nobody reads and nothing stores, and the run fails where it is false.

    One that `updates` another takes over its memory, and writes its body to where this reads the other one, point by
    point. Points that differ in variables of `reduced` may have the same place, and are taken in order. The other has
    its `buffer` under this one's name, and no other reader.

    With `first_half_of` it reduces the parts of that definition, which was split: that one combines them.

    With a `scan` it is at each point what the body comes to at all points of the variable `scanned` up to this one,
    or, in `reverse`, from this one on: combined as that row of `ops.SCANS` says, or, of kind `ops.STEPS`, as the body,
    a `Recurrence`, says itself.
    """

    name: str
    layout: Layout
    domain: tuple[Var, ...]
    axes: tuple[Var | None, ...]
    body: Expr
    reduction: str | None = None
    reduced: frozenset[Var] = frozenset()
    origin: str = ""
    position: int = 0
    failure: Failure | None = None
    updates: str | None = None
    buffer: str | None = None
    first_half_of: str | None = None
    scan: str | None = None
    scanned: Var | None = None
    reverse: bool = False

    @property
    def dtype(self) -> str:
        return self.layout.dtype

    @property
    def kept(self) -> tuple[Var, ...]:
        return tuple(v for v in self.domain if v not in self.reduced)

    @property
    def in_rows(self) -> frozenset[Var]:
        """The variables along which points belong together: a kernel goes along them in rows."""
        return self.reduced if self.scanned is None else self.reduced | {self.scanned}


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """An FX node run as it is; its arguments name runtime values. `position` is that in the graph.

    With `size` the node is an integer, which is computed from its symbols instead. A call with an effect keeps its
    place among those; one that may fail is made whether or not its result is used.
    """

    name: str
    node: fx.Node
    needs: tuple[str, ...]
    position: int
    effect: bool = False
    size: Size | None = None
    may_fail: bool = False


@dataclass(frozen=True, slots=True)
class SymbolBinding:
    """The source of a symbol when the graph runs: `what` of the runtime value `source` is factor * symbol + shift.

    `what` is "number" where the value itself is one, "size" or "stride" of dimension `dim`, or "offset".
    """

    source: str
    what: ScalarOrigin
    dim: int = 0
    factor: int = 1
    shift: int = 0


@dataclass(slots=True)
class Program:
    """A lowered graph. `layouts` has every buffer whose elements definitions read or write.

    `kept` are definitions that must exist in memory, `alone` those that fuse with checks only: each is a kernel,
    and in memory; `column_scans` are not in one kernel with reductions or checks. `runtime` has the name of a
    graph node's value when the graph runs. `views` has the views that calls return, `bindings` the sources of symbols,
    `numbers` the runtime values that are numbers. `recomputed` are the positions of what a backward pass
    recomputes for checkpoints, in increasing order, each with the number of its stage: computed in another stage, it
    would be in memory too early, or too long. `held` are inputs whose memory stays after their last use.
    """

    inputs: list[str] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    defs: dict[str, Def] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    alone: set[str] = field(default_factory=set)
    column_scans: set[str] = field(default_factory=set)
    outputs: list[object] = field(default_factory=list)
    runtime: dict[str, str] = field(default_factory=dict)
    views: dict[str, BufferView] = field(default_factory=dict)
    bindings: dict[Symbol, SymbolBinding] = field(default_factory=dict)
    numbers: set[str] = field(default_factory=set)
    recomputed: dict[int, int] = field(default_factory=dict)

    @property
    def is_symbolic(self) -> bool:
        return bool(self.bindings or self.numbers)

    def view(self, name: str) -> BufferView | None:
        """Return the view of the tensor of that runtime name, if kernels can read it."""
        layout = self.layouts.get(name)
        whole = None if layout is None else BufferView(name, 0, layout.shape, layout.strides)
        return self.views.get(name, whole)

    def numbers_for(self, item: Def | Call) -> tuple[str, ...]:
        """Return the runtime values that bind the symbols and numbers of a definition, or of a call's result."""
        if not self.is_symbolic:
            return ()
        numbers: list[Number] = []
        if isinstance(item, Def):
            found, numbers = symbols_and_numbers(item.body)
            found |= symbols_of(v.size for v in item.domain)
            layouts = [item.layout, *(self.layouts[load.source] for load in loads(item.body))]
        else:
            found = symbols_of(() if item.size is None else (item.size,))
            layouts = [self.layouts[item.name]] if item.name in self.layouts else []
        found = found.union(*(symbols_of((*layout.shape, *layout.strides)) for layout in layouts))
        sources = sorted(self.bindings[symbol].source for symbol in found)
        return tuple(dict.fromkeys([*(number.name for number in numbers), *sources]))

    def text(self) -> str:
        lines = [f"{name}: {describe(self.layouts[name])}" for name in self.inputs if name in self.layouts]
        lines += [describe_def(d, d.name in self.kept) for d in self.defs.values()]
        lines += [f"{c.name} = {c.node.target}({', '.join(c.needs)})" for c in self.calls.values()]
        lines.append(f"return {', '.join(str(o) for o in self.outputs)}")
        return "\n".join(lines)


def updated_place(d: Def) -> tuple[Ix, ...]:
    """Return the indices at which a definition updates another: those at which it reads that one."""
    [place] = {load.index for load in loads(d.body) if load.source == d.updates}
    return place


def describe(layout: Layout) -> str:
    is_contiguous = layout.strides == contiguous_strides(layout.shape) or layout.numel == 0
    return f"{layout.dtype}{list(layout.shape)}{'' if is_contiguous else f' strides {list(layout.strides)}'}"


def is_dense(layout: Layout) -> bool:
    """Whether the elements fill memory without gaps or overlaps, for all sizes."""
    if all(type(n) is int for n in (*layout.shape, *layout.strides)):
        return layouts.is_dense(layout.shape, layout.strides)
    rest = [(size, step) for size, step in zip(layout.shape, layout.steps, strict=True) if size != 1]
    expected: Size = 1
    while rest:
        at = next((k for k, (_, step) in enumerate(rest) if step == expected), None)
        if at is None:
            return False
        expected = expected * where_not_empty(rest.pop(at)[0])
    return True


def contiguous_strides(shape: Iterable[Size]) -> tuple[Size, ...]:
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(tuple(shape)):
        strides.append(step)
        step *= extreme(size, 1, True) if isinstance(size, Sym) else max(size, 1)
    return tuple(reversed(strides))


def lies_in_order(layout: Layout, order: Sequence[int]) -> bool:
    """Whether the elements lie one behind the other with the dimensions in this order, for all sizes."""
    wanted = contiguous_strides([layout.shape[k] for k in order])
    steps = zip(order, map(where_not_empty, wanted), strict=True)
    return all(layout.shape[k] == 1 or layout.steps[k] == step for k, step in steps)


def lies_in_rows(layout: Layout) -> bool:
    """Whether torch calls the tensor contiguous: strides of single elements do not count."""
    return lies_in_order(layout, range(len(layout.shape)))


def has_channels_last(layout: Layout) -> bool:
    """Whether the layout is `torch.channels_last` or `channels_last_3d`, for all sizes."""
    rank = len(layout.shape)
    return rank in (4, 5) and lies_in_order(layout, (0, *range(2, rank), 1))


def describe_def(d: Def, kept: bool) -> str:
    left = ", ".join(v.name if v is not None else "0" for v in d.axes)
    lines, (right,) = named_text([d.body])
    if d.updates is not None:
        left = ", ".join(map(repr, updated_place(d)))
    if d.reduction is not None:
        over = ", ".join(f"{v.name}<{v.size}" for v in d.domain if v in d.reduced)
        right = f"{d.reduction}[{over}] {right}"
    if d.scan is not None:
        right = f"{'reverse ' if d.reverse else ''}{d.scan} scan[{d.scanned}] {right}"
    mark = "check" if d.failure is not None else "store" if kept else "def"
    head = f"{mark} {d.name}: {describe(d.layout)}  {d.name}[{left}] = {right}"
    return "\n".join([head, *(f"    where {line}" for line in reversed(lines))])
