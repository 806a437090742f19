"""The smallest and largest value of an integer expression, as far as its operations bound it."""

from __future__ import annotations

from collections.abc import Callable

from framesmith_backends.ir.dtypes import integer_range, is_integer
from framesmith_backends.ir.expr import Cast, Const, Expr, Index, Op, walk
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.size import Size

Range = tuple[int, int]


def is_within(value: Expr, size: Size) -> bool:
    """Whether 0 <= value < size, surely."""
    low, high = range_of(value)
    return isinstance(size, int) and low >= 0 and high < size


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
