"""The smallest and largest value of an integer expression, as far as its operations bound it, and what that decides."""

from __future__ import annotations

from collections.abc import Callable

from framesmith_backends.ir.dtypes import integer_range, is_integer
from framesmith_backends.ir.expr import Cast, Const, Expr, Index, Load, Op, transform, walk
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix
from framesmith_backends.ir.symbolic.size import Size

Range = tuple[int, int]


def is_within(value: Expr, size: Size) -> bool:
    """Whether 0 <= value < size, surely."""
    low, high = range_of(value)
    return isinstance(size, int) and low >= 0 and high < size


def simplified(root: Expr) -> Expr:
    """The expression without comparisons that ranges decide, and with indices in place of indirect ones that are some.

    A position that counts from the end where it is below 0 is the position itself where it never is.
    """
    return transform(root, _simpler)


def _simpler(e: Expr) -> Expr | None:
    if isinstance(e, Load):
        return Load(e.source, tuple(map(_direct, e.index)), e.dtype, e.guard)
    if isinstance(e, Index):
        return Index(_direct(e.ix))
    if not isinstance(e, Op):
        return None
    if e.name in _DECIDES and is_integer(e.args[0].dtype):
        held = _DECIDES[e.name](range_of(e.args[0]), range_of(e.args[1]))
        return None if held is None else Const(held, "b1")
    if e.name == "where" and isinstance(e.args[0], Const):
        return e.args[1] if e.args[0].value else e.args[2]
    return None


def _direct(ix: Ix) -> Ix:
    """The index with the positions of its indirect parts that are indices within their dimensions."""
    parts = index.indirect_atoms(ix)
    known = {p: p.value.ix for p in parts if isinstance(p.value, Index) and is_within(p.value, p.size)}
    return index.substitute(ix, known) if known else ix


def _below(a: Range, b: Range) -> bool | None:
    """Whether a < b, if that is the same for all of their values."""
    return True if a[1] < b[0] else False if a[0] >= b[1] else None


def _negated(held: bool | None) -> bool | None:
    return None if held is None else not held


#: Comparisons of integers -> whether they hold, where ranges say so.
_DECIDES: dict[str, Callable[[Range, Range], bool | None]] = {
    "lt": _below, "gt": lambda a, b: _below(b, a),
    "ge": lambda a, b: _negated(_below(a, b)), "le": lambda a, b: _negated(_below(b, a)),
}  # fmt: skip


def range_of(root: Expr) -> Range:
    known: dict[Expr, Range] = {}
    for node in walk(root):
        if is_integer(node.dtype):
            whole = integer_range(node.dtype)
            found = _range(node, known)
            known[node] = found if found is not None and whole[0] <= found[0] and found[1] <= whole[1] else whole
    return known[root]


def _range(node: Expr, known: dict[Expr, Range]) -> Range | None:
    """None where nothing but its type is known of the value. What does not fit the type wraps around."""
    if isinstance(node, Const):
        return int(node.value), int(node.value)
    if isinstance(node, Index):
        return index.bounds(node.ix) if index.is_fixed(node.ix) else None  # type: ignore[return-value]
    if isinstance(node, Cast):
        return known.get(node.value)
    if not isinstance(node, Op) or node.name not in _RANGES:
        return None
    return _RANGES[node.name](*(known[arg] for arg in node.args if arg in known))


#: Operations -> the range of their result, of those of their operands that are integers.
_RANGES: dict[str, Callable[[Range, Range], Range | None]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "shr": lambda a, b: (a[0] >> b[1], a[1] >> b[0]) if a[0] >= 0 <= b[0] else None,
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "where": lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
}
