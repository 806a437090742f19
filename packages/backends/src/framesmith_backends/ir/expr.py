"""Scalar expressions: what one element of a tensor is. Frozen and interned; types are checked when built."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import reduce
from typing import Any

from framesmith_backends.ir.dtypes import DTYPES, rounded_to
from framesmith_backends.ir.ops import OPS
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Indirect, Ix, Var
from framesmith_backends.ir.symbolic.interning import Node, interned, make
from framesmith_backends.ir.symbolic.size import Size, Sym, Symbol, Undecided


def _operator(name: str, swapped: bool = False) -> Callable[[Any, Any], Expr]:
    def apply(self: Expr, other: Expr | int | float | Sym) -> Expr:
        right = other if isinstance(other, Value) and type(other) is not Number else number(other, self.dtype)
        return Op(name, right, self) if swapped else Op(name, self, right)

    return apply


class Value(Node):
    """Arithmetic notation: `x * 0.5 + y` builds `Op` nodes; numbers, `Number`s and sizes take the operand's type."""

    # Caches: nodes are frozen, and every pass needs these of each.
    __slots__ = ("_children", "_cost", "_loads")
    _children: tuple[Expr, ...]
    _cost: int
    _loads: tuple[Load, ...]
    dtype: str

    def __bool__(self) -> bool:
        raise Undecided("a number of the call decides what is computed")

    __add__, __radd__ = _operator("add"), _operator("add", swapped=True)
    __sub__, __rsub__ = _operator("sub"), _operator("sub", swapped=True)
    __mul__, __rmul__ = _operator("mul"), _operator("mul", swapped=True)
    __truediv__, __rtruediv__ = _operator("div"), _operator("div", swapped=True)
    __gt__, __ge__ = _operator("gt"), _operator("ge")
    __lt__, __le__ = _operator("lt"), _operator("le")

    def __neg__(self) -> Expr:
        return Op("neg", self)  # type: ignore[arg-type]


class Const(Value):
    """A number of the given dtype; of a low-precision type it is the nearest one that it holds."""

    __slots__ = ("dtype", "value")
    dtype: str
    value: bool | int | float

    def __new__(cls, value: bool | int | float, dtype: str) -> Const:
        kind = DTYPES[dtype].kind
        if kind == "b":
            value = bool(value)
        elif kind == "f":
            value = rounded_to(value, dtype)
        else:
            row = DTYPES[dtype]
            value = int(value) % (1 << row.bits)
            if kind == "i" and value >= 1 << (row.bits - 1):
                value -= 1 << row.bits
        return make(cls, dtype, value)

    def __repr__(self) -> str:
        return f"{self.value}:{self.dtype}"


@interned
class Index(Value):
    """An index expression as an int64 value."""

    ix: Ix
    dtype = "i64"

    def __repr__(self) -> str:
        return f"index({self.ix})"


@interned
class Number(Value):
    """A float that is known only at the call, in double precision as Python has it."""

    name: str
    dtype = "f64"

    def __repr__(self) -> str:
        return f"${self.name}"


class Load(Value):
    """The element of `source` at `index`; where `guard` is false the value is 0 and nothing is read."""

    __slots__ = ("dtype", "guard", "index", "source")
    dtype: str
    guard: Expr | None
    index: tuple[Ix, ...]
    source: str

    def __new__(cls, source: str, index: tuple[Ix, ...], dtype: str, guard: Expr | None = None) -> Load:
        return make(cls, dtype, guard, index, source)

    def __repr__(self) -> str:
        suffix = f" if {self.guard!r}" if self.guard is not None else ""
        return f"{self.source}[{', '.join(map(repr, self.index))}]{suffix}"


@interned
class Ref(Value):
    """The result of the reduction of that name in the kernel at hand, at the current point."""

    name: str
    dtype: str

    def __repr__(self) -> str:
        return f"%{self.name}"


@interned
class Carried(Value):
    """Within a `Recurrence`: the carried value of that number, before the step."""

    number: int
    dtype: str

    def __repr__(self) -> str:
        return f"carried.{self.number}"


@interned
class Recurrence(Value):
    """A value that steps along a scanned variable carry: number `which`, before the step of a point or `after` it.

    Number k begins as `starts[k]`, and each step makes it `steps[k]`, of the values carried so far (`Carried`).
    """

    starts: tuple[Expr, ...]
    steps: tuple[Expr, ...]
    which: int
    after: bool
    dtype: str

    def __repr__(self) -> str:
        return brief(self)


@interned
class Cast(Value):
    """The value in another type: rounded to a narrower float, compared with 0 to a bool, truncated to an integer."""

    value: Expr
    dtype: str

    def __repr__(self) -> str:
        return brief(self)


class Op(Value):
    """A row of `ops.OPS` applied to operands of one type (`where`: a bool, then two of one type)."""

    __slots__ = ("args", "dtype", "name")
    args: tuple[Expr, ...]
    dtype: str
    name: str

    def __new__(cls, name: str, *args: Expr) -> Op:
        problem = why_not_op(name, args)
        if problem is not None:
            raise TypeError(problem)
        row = OPS[name]
        return make(cls, args, row.result if row.result != "same" else args[-1].dtype, name)

    def __repr__(self) -> str:
        return brief(self)


Expr = Const | Index | Number | Load | Ref | Carried | Recurrence | Cast | Op


def number(value: bool | int | float | Sym | Number, dtype: str) -> Expr:
    """A number of Python's, or one that is known only at the call, in this type."""
    if isinstance(value, (int, float)):
        return Const(value, dtype)
    return cast(value if isinstance(value, Number) else Index(index.const(value)), dtype)


def cast(value: Expr, dtype: str) -> Expr:
    """The value in that type, itself if it is of it."""
    return value if value.dtype == dtype else Cast(value, dtype)


def folded(name: str, parts: Iterable[Expr]) -> Expr:
    """An operation of two operands applied to all parts, from the first on."""
    return reduce(lambda a, b: Op(name, a, b), parts)


def why_not_op(name: str, args: tuple[Expr, ...]) -> str | None:
    """Why these operands do not fit the operation, or None."""
    row = OPS.get(name)
    if row is None:
        return f"unknown scalar operation {name!r}"
    if len(args) != row.arity:
        return f"{name} takes {row.arity} operands, got {len(args)}"
    operands = args[1:] if name == "where" else args
    if name == "where" and args[0].dtype != "b1":
        return f"where takes a b1 condition, got {args[0].dtype}"
    for arg in operands:
        if arg.dtype != operands[0].dtype:
            return f"{name} takes operands of one type, got {[a.dtype for a in args]}"
        kind = DTYPES[arg.dtype].kind
        if ("i" if kind == "u" else kind) not in row.kinds or DTYPES[arg.dtype].compute != arg.dtype:
            return f"{name} does not take {arg.dtype}"
    return None


# How deep `repr` looks into an expression; `ir.text` prints whole ones.
BRIEF_DEPTH = 8


def brief(e: Expr, depth: int = BRIEF_DEPTH) -> str:
    """The expression as one line, with "..." for what lies deeper than `depth`."""
    if isinstance(e, (Op, Cast, Recurrence)):
        name = e.name if isinstance(e, Op) else e.dtype if isinstance(e, Cast) else described(e)
        return f"{name}({', '.join(brief(c, depth - 1) if depth else '...' for c in children(e))})"
    return repr(e)


def described(e: Recurrence) -> str:
    """The recurrence without its starts and steps."""
    return f"{'after' if e.after else 'before'}.{e.which}"


def indirect(value: Expr, size: Size) -> Ix:
    """Return an index along a dimension of that size from a value of i64; 0 where the value lies outside."""
    if value.dtype != "i64":
        raise TypeError(f"a position is i64, not {value.dtype}")
    return index.of(Indirect(value, size, variables(value)))


def children(e: Expr) -> tuple[Expr, ...]:
    """Return the operands, of reads and indices with the values of indirect indices."""
    try:
        return e._children
    except AttributeError:
        found = _operands(e)
        object.__setattr__(e, "_children", found)
        return found


def _operands(e: Expr) -> tuple[Expr, ...]:
    if isinstance(e, Op):
        return e.args
    if isinstance(e, Cast):
        return (e.value,)
    if isinstance(e, Recurrence):
        return (*e.starts, *e.steps)
    if isinstance(e, Load):
        return (*((e.guard,) if e.guard is not None else ()), *indirect_parts(*e.index))
    return indirect_parts(e.ix) if isinstance(e, Index) else ()


def indirect_parts(*indices: Ix) -> tuple[Expr, ...]:
    """Return the values of the indirect parts of the indices, each once."""
    return tuple(atom.value for atom in _all_indirect(indices))  # type: ignore[misc]


def _all_indirect(indices: tuple[Ix, ...]) -> tuple[Indirect, ...]:
    found = dict.fromkeys(atom for ix in indices if ix.terms for atom in index.indirect_atoms(ix))
    return tuple(found)


def walk(*roots: Expr) -> Iterator[Expr]:
    """Every distinct node under the roots, operands before users."""
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(children(node)))


def loads(*roots: Expr) -> list[Load]:
    """The reads under the roots, each once, in the order of `walk`."""
    found = getattr(roots[0], "_loads", None) if len(roots) == 1 else None
    if found is None:
        found = tuple(node for node in walk(*roots) if isinstance(node, Load))
        if len(roots) == 1:
            object.__setattr__(roots[0], "_loads", found)
    return [*found]


def approximate_parts(root: Expr, names: Collection[str]) -> frozenset[Expr]:
    """Return the operations of these names on float32 that are read only after rounding to bfloat16."""
    rounded: set[Expr] = set()
    exact: set[Expr] = {root}
    for node in walk(root):
        if isinstance(node, Cast) and node.dtype == "bf16":
            rounded.add(node.value)
        else:
            exact.update(children(node))
    return frozenset(n for n in rounded - exact if isinstance(n, Op) and n.name in names and n.dtype == "f32")


def cost(*roots: Expr) -> int:
    """Rough cycles per vector of evaluating the roots, shared parts once."""
    found: int | None = getattr(roots[0], "_cost", None) if len(roots) == 1 else None
    if found is None:
        found = sum(map(step_cost, walk(*roots)))
        if len(roots) == 1:
            object.__setattr__(roots[0], "_cost", found)
    return found


def step_cost(e: Expr) -> int:
    """Rough cycles per vector of this step alone, of what it is given."""
    return OPS[e.name].cost if isinstance(e, Op) else int(isinstance(e, Cast))


def symbols_and_numbers(*roots: Expr) -> tuple[frozenset[Symbol], list[Number]]:
    """Return the symbols of the indices under the roots, and the numbers that are known only at the call."""
    found, numbers = frozenset[Symbol](), list[Number]()
    for node in walk(*roots):
        if isinstance(node, Number):
            numbers.append(node)
        elif isinstance(node, (Load, Index)):
            found = found.union(*map(index.symbols, node.index if isinstance(node, Load) else (node.ix,)))
    return found, numbers


Rule = Callable[[Expr], Expr | None]


def rebuild(e: Expr, parts: tuple[Expr, ...]) -> Expr:
    """The same node over other children."""
    if isinstance(e, Op):
        return Op(e.name, *parts)
    if isinstance(e, Cast):
        return Cast(parts[0], e.dtype)
    if isinstance(e, Recurrence):
        return Recurrence(parts[: len(e.starts)], parts[len(e.starts) :], e.which, e.after, e.dtype)
    if isinstance(e, Load) and parts:
        guard, values = (None, parts) if e.guard is None else (parts[0], parts[1:])
        return Load(e.source, _with_values(e.index, values), e.dtype, guard)
    return Index(*_with_values((e.ix,), parts)) if isinstance(e, Index) and parts else e


def _with_values(indices: tuple[Ix, ...], values: tuple[Expr, ...]) -> tuple[Ix, ...]:
    """Return the indices with other values in their indirect parts."""
    known = {atom: indirect(value, atom.size) for atom, value in zip(_all_indirect(indices), values, strict=True)}
    return tuple(index.substitute(ix, known) for ix in indices)


def transform(root: Expr, rule: Rule) -> Expr:
    """Bottom-up rewrite: `rule` sees each node with its children already rewritten, and may decline with None."""
    done: dict[Expr, Expr] = {}
    for node in walk(root):
        parts = children(node)
        fresh = tuple(done[child] for child in parts)
        changed = any(a is not b for a, b in zip(parts, fresh, strict=True))
        current = rebuild(node, fresh) if changed else node
        replaced = rule(current)
        done[node] = current if replaced is None else replaced
    return done[root]


def on_buffers(root: Expr, names: Mapping[str, str]) -> Expr:
    """The same of buffers of other names."""

    def rule(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.source in names:
            return Load(names[e.source], e.index, e.dtype, e.guard)
        return None

    return transform(root, rule)


def called(names: Mapping[str, str]) -> Callable[[Expr], Expr]:
    """Return a function that renames the buffers and reductions of expressions, no two to the same name.

    Names in indirect indices stay. Parts that several expressions share are renamed once.
    """
    done: dict[Expr, Expr] = {}

    def renamed(root: Expr) -> Expr:
        for node in walk(root):
            if node in done:
                continue
            found: Expr = node
            if isinstance(node, Op):
                found = make(Op, tuple(done[part] for part in node.args), node.dtype, node.name)
            elif isinstance(node, Load):
                guard = None if node.guard is None else done[node.guard]
                found = make(Load, node.dtype, guard, node.index, names.get(node.source, node.source))
            elif isinstance(node, Cast):
                found = Cast(done[node.value], node.dtype)
            elif isinstance(node, Ref):
                found = Ref(names.get(node.name, node.name), node.dtype)
            done[node] = found
        return done[root]

    return renamed


def substitute(root: Expr, values: Mapping[Var, Ix]) -> Expr:
    """Replace loop variables in every index under `root`."""

    def rule(e: Expr) -> Expr | None:
        if isinstance(e, Load):
            return Load(e.source, tuple(index.substitute(i, values) for i in e.index), e.dtype, e.guard)
        if isinstance(e, Index):
            return Index(index.substitute(e.ix, values))
        return None

    return transform(root, rule) if values else root


def guarded(root: Expr, guard: Expr | None) -> Expr:
    """`root` where `guard` holds, else 0, reading nothing where it does not. Without a guard `root` itself."""
    if guard is None:
        return root

    def rule(e: Expr) -> Expr | None:
        if isinstance(e, Load):
            both = guard if e.guard is None else Op("and", guard, e.guard)
            return Load(e.source, e.index, e.dtype, both)
        return None

    inner = transform(root, rule)
    if isinstance(inner, Load):
        return inner
    compute = DTYPES[inner.dtype].compute
    return cast(Op("where", guard, cast(inner, compute), Const(0, compute)), inner.dtype)


def variables(root: Expr) -> frozenset[Var]:
    return frozenset[Var]().union(*map(own_variables, walk(root)))


def own_variables(e: Expr) -> frozenset[Var]:
    """Those of the node itself, without its operands'."""
    indices = e.index if isinstance(e, Load) else (e.ix,) if isinstance(e, Index) else ()
    return frozenset[Var]().union(*map(index.variables, indices))
