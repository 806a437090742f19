"""Questions about sizes and numbers that may be symbols, answered without specialising them.

For numbers that are not symbolic, torch's symbolic shapes, which take long to import, stay unused.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from framesmith_aten.torch_adapter import unstable

#: The types of symbolic scalars.
SYMBOLIC: Final = (torch.SymInt, torch.SymFloat, torch.SymBool)

#: Integers of this magnitude and beyond are no symbols: graphs compute in 64 bits, where Python is exact.
LARGEST_SYMBOL: Final = 2**31

#: The size that is assumed of an unbacked symbol where one is needed.
UNBACKED_HINT: Final = 2


def is_symbolic(value: object) -> bool:
    return type(value) in SYMBOLIC


def as_expressions(value: Any) -> Any:
    """Return a number's expression, and lists as tuples: equal where values are known to be equal."""
    if isinstance(value, (list, tuple)):
        return tuple(map(as_expressions, value))
    return value.node.expr if is_symbolic(value) else value


def is_unbacked(number: Any) -> bool:
    """Whether a number has no hint: only a call has its value."""
    return is_symbolic(number) and not number.node.has_hint()


def known_value(number: Any) -> int | float | bool | None:
    """Return the value that a symbolic number is known to have, or None."""
    expr = number.node.expr
    known = expr.is_number or (expr.is_Boolean and not expr.free_symbols)
    value: int | float | bool | None = number.node.pytype(expr) if known else None
    return value


def is_assumed(number: Any) -> bool:
    """Whether an unbacked number is assumed to equal another expression, which each call has to check.

    The check itself must not rely on it.
    """

    if not isinstance(number, torch.SymInt):
        return False
    return number.node.expr != number.node._expr and bool(unstable.free_unbacked_symbols(number.node._expr))


def has_symbols(tensor: torch.Tensor) -> bool:
    """Whether a size, a stride or the storage offset of a tensor is symbolic."""
    return bool(tensor._has_symbolic_sizes_strides)


def holds(condition: Any) -> bool:
    """Whether a condition is known to hold for all values of its symbols; adds no guard."""
    if not isinstance(condition, torch.SymBool):
        return bool(condition)

    return bool(unstable.statically_known_true(condition))


def equal(first: Any, second: Any) -> bool:
    """Whether two numbers are known to be equal for all values of their symbols."""
    return holds(first == second)


def all_equal(first: Iterable[Any], second: Iterable[Any]) -> bool:
    """`equal` of each pair of two sequences of one length."""
    return all(equal(one, two) for one, two in zip(first, second, strict=True))


def hint_or_guess(number: Any) -> Any:
    """Return a number's value at present, or UNBACKED_HINT, for choices that are right for any value."""
    if type(number) not in SYMBOLIC:
        return number
    node = number.node
    known = node.hint if node.has_hint() else None
    return node.pytype(UNBACKED_HINT) if known is None else known


def hint_or_none(number: Any) -> Any:
    """Return a number's value at present, symbolic or not; None for an unbacked one."""
    if type(number) not in SYMBOLIC:
        return number
    return number.node.hint if number.node.has_hint() else None


def has_unbacked_length(tensor: torch.Tensor) -> bool:
    return None in map(hint_or_none, tensor.shape)


def number_type(number: Any) -> type:
    """Return the type of Python numbers that a number, symbolic or not, stands for."""
    kind: type = number.node.pytype if is_symbolic(number) else type(number)
    return kind


def hint_assuming(number: Any, size: int) -> Any:
    """Return a number's value at present with each unbacked length assumed to be `size`, or the nearest in its range.

    Unlike `hint_or_guess`, which gives every unbacked expression one value, it gives sizes and strides of one layout.
    """
    if type(number) not in SYMBOLIC or number.node.has_hint():
        return hint_or_guess(number)
    value = _value_assuming(number.node.expr, number.node.shape_env, size)
    return number.node.pytype(value) if value is not None and value.is_number else hint_or_guess(number)


def holds_assuming(condition: Any, env: Any, size: int) -> bool | None:
    """Whether a sympy condition holds with each unbacked number `size`; None where it has no value then."""
    value = _value_assuming(condition, env, size)
    return bool(value) if value is not None and value.is_Boolean and not value.free_symbols else None


def _value_assuming(expr: Any, env: Any, size: int) -> Any:
    """Return the expression with numbers for its symbols, or None where it has no value then."""
    given = {
        symbol: env.backed_var_to_val.get(symbol, _clamped(size, env.var_to_range[symbol]))
        for symbol in expr.free_symbols
    }
    try:
        return expr.subs(given)
    except ZeroDivisionError:
        return None


def _clamped(number: int, bounds: Any) -> int:
    least = int(bounds.lower) if bounds.lower.is_Integer else number
    most = int(bounds.upper) if bounds.upper.is_Integer else number
    return min(max(number, least), most)


def at_least(first: Any, second: Any) -> bool:
    """Whether one positive number is at least another; adds a guard on symbols where that is not known."""
    if holds(first >= second) or holds(second >= first):
        return holds(first >= second)
    if equal(first % second, 0) or equal(second % first, 0):
        return equal(first % second, 0)
    return bool(first >= second)


def holds_at_present(condition: Any) -> bool:
    """Whether a condition holds, known or at present; adds a guard in the latter case."""
    if holds(condition):
        return True
    if not isinstance(condition, torch.SymBool) or not condition.node.has_hint() or not condition.node.hint:
        return False
    return bool(condition)


def may_all_hold(conditions: Sequence[torch.SymBool]) -> bool:
    """Whether unbacked numbers are found for which all conditions hold, other symbols having their values at present.

    So must the runtime assertions on these numbers alone. Few combinations of small numbers are tried: conditions that
    hold for large numbers alone are not satisfied.
    """
    if not conditions:
        return True
    env = conditions[0].node.shape_env
    terms = [one.node.expr.xreplace(env.backed_var_to_val) for one in conditions]
    symbols = sorted({symbol for expr in terms for symbol in expr.free_symbols}, key=str)
    asserted = [
        one.expr.xreplace(env.backed_var_to_val) for some in env.deferred_runtime_asserts.values() for one in some
    ]
    terms += [expr for expr in asserted if expr.free_symbols <= set(symbols)]
    tried = [_some_within(env.var_to_range[symbol]) for symbol in symbols]
    some = itertools.islice(itertools.product(*tried), MOST_TRIED)
    return any(_hold_for(terms, dict(zip(symbols, values, strict=True))) for values in some)


def _hold_for(conditions: Sequence[Any], given: Mapping[Any, int]) -> bool:
    try:
        return all(bool(expr.subs(given)) for expr in conditions)
    except ZeroDivisionError:
        return False


#: Combinations tried to find one for which conditions hold.
MOST_TRIED: Final = 256


def _some_within(bounds: Any) -> list[int]:
    """Return some numbers within bounds, those first for which most conditions on sizes hold."""
    least = int(bounds.lower) if bounds.lower.is_Integer else 0
    return [least + more for more in (2, 3, 5, 7, 1, 0, 11, 16) if least + more <= bounds.upper]


def is_data_dependent(error: BaseException) -> bool:
    """Whether an error says that an unbacked value was asked for."""
    return any(kind.__name__ == "GuardOnDataDependentSymNode" for kind in type(error).__mro__)


def is_the_same(new: Any, old: Any) -> list[tuple[Any, Any]]:
    """Rename unbacked symbols of a new result to those of an old one of the same computation.

    Returns the pairs (new symbol, old symbol).
    """
    return [pair for mine, theirs in _pairs(new, old) if (pair := _become(mine, theirs)) is not None]


def take_known(new: Sequence[Any], old: Sequence[Any]) -> None:
    """Specialise unbacked symbols of a repeated computation to the values known since it was first made."""
    for mine, before in zip(new, old, strict=True):
        known = known_value(before) if is_symbolic(before) else None
        if known is not None and is_unbacked(mine) and mine.node.expr.is_Symbol:
            mine.node.shape_env._set_replacement(mine.node.expr, before.node.expr, "it was computed before")


def _pairs(new: Any, old: Any) -> Iterator[tuple[Any, Any]]:
    """Yield pairs of symbolic numbers of two results of a call."""
    if isinstance(new, (list, tuple)) and isinstance(old, (list, tuple)):
        for one, two in zip(new, old, strict=False):
            yield from _pairs(one, two)
    elif isinstance(new, torch.Tensor) and isinstance(old, torch.Tensor):
        if has_symbols(new) and has_symbols(old):
            yield from _pairs(tuple(new.shape), tuple(old.shape))
    elif is_symbolic(new) and is_symbolic(old):
        yield new, old


def _become(new: Any, old: Any) -> tuple[Any, Any] | None:
    mine, theirs = new.node.expr, old.node.expr
    if mine == theirs or not (mine.is_Symbol and theirs.is_Symbol):
        return None

    if not unstable.free_unbacked_symbols(mine) or not unstable.free_unbacked_symbols(theirs):
        return None
    new.node.shape_env._rename_unbacked_to(mine, theirs)
    return mine, theirs
