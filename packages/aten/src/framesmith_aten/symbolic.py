"""Questions about sizes and numbers that may be symbols, answered without asking what they are at present.

Of what is not symbolic they ask nothing of torch's symbolic shapes, which take long to import.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from framesmith_aten.torch_adapter import unstable

#: What a number in a graph is while tracing.
SYMBOLIC: Final = (torch.SymInt, torch.SymFloat, torch.SymBool)

#: Integers of this magnitude and beyond are no symbols: graphs compute in 64 bits, where Python is exact.
LARGEST_SYMBOL: Final = 2**31

#: What stands for a number of which nothing is known but at a call: an unbacked symbol.
UNKNOWN: Final = 2


def is_symbolic(value: object) -> bool:
    """Whether a value is a number that is not known while tracing."""
    return type(value) in SYMBOLIC


def as_expressions(value: Any) -> Any:
    """A number as what it is computed of, and lists as tuples: equal where it is known that values are."""
    if isinstance(value, (list, tuple)):
        return tuple(map(as_expressions, value))
    return value.node.expr if is_symbolic(value) else value


def is_unbacked(number: Any) -> bool:
    """Whether a number is one that only a call has."""
    return is_symbolic(number) and not number.node.has_hint()


def known_value(number: Any) -> int | float | bool | None:
    """What a symbolic number has turned out to be, or None."""
    expr = number.node.expr
    known = expr.is_number or (expr.is_Boolean and not expr.free_symbols)
    value: int | float | bool | None = number.node.pytype(expr) if known else None
    return value


def is_assumed(number: Any) -> bool:
    """Whether it is taken for granted of a number that data tell that it is another one, which a call has to check.

    What checks it must not rely on it.
    """

    if not isinstance(number, torch.SymInt):
        return False
    return number.node.expr != number.node._expr and bool(unstable.free_unbacked_symbols(number.node._expr))


def has_symbols(tensor: torch.Tensor) -> bool:
    """Whether a size, a stride or the storage offset of a tensor is symbolic."""
    return bool(tensor._has_symbolic_sizes_strides)


def holds(condition: Any) -> bool:
    """Whether a condition is known to hold whatever its symbols are; no guard is added."""
    if not isinstance(condition, torch.SymBool):
        return bool(condition)

    return bool(unstable.statically_known_true(condition))


def equal(first: Any, second: Any) -> bool:
    """Whether two numbers are known to be equal whatever their symbols are."""
    return holds(first == second)


def all_equal(first: Iterable[Any], second: Iterable[Any]) -> bool:
    """The same of sequences of one length."""
    return all(equal(one, two) for one, two in zip(first, second, strict=True))


def hint(number: Any) -> Any:
    """What a number is at present: for choices that are right whatever it is at a call."""
    if type(number) not in SYMBOLIC:
        return number
    node = number.node
    known = node.hint if node.has_hint() else None
    return node.pytype(UNKNOWN) if known is None else known


def hint_assuming(number: Any, told: int) -> Any:
    """What a number is at present where each length that data tell is `told`, or as near to it as it can be.

    Unlike `hint`, which knows of no sum or product of those: numbers that go together, of one layout.
    """
    if type(number) not in SYMBOLIC or number.node.has_hint():
        return hint(number)
    value = _value_assuming(number.node.expr, number.node.shape_env, told)
    return number.node.pytype(value) if value is not None and value.is_number else hint(number)


def holds_assuming(condition: Any, env: Any, told: int) -> bool | None:
    """Whether a condition, a sympy expression, holds where each number that data tell is that; None if none can say."""
    value = _value_assuming(condition, env, told)
    return bool(value) if value is not None and value.is_Boolean and not value.free_symbols else None


def _value_assuming(expr: Any, env: Any, told: int) -> Any:
    """The expression with numbers in place of its symbols; None where it has no value then."""
    given = {
        symbol: env.backed_var_to_val.get(symbol, _nearest(told, env.var_to_range[symbol]))
        for symbol in expr.free_symbols
    }
    try:
        return expr.subs(given)
    except ZeroDivisionError:
        return None


def _nearest(number: int, bounds: Any) -> int:
    least = int(bounds.lower) if bounds.lower.is_Integer else number
    most = int(bounds.upper) if bounds.upper.is_Integer else number
    return min(max(number, least), most)


def at_least(first: Any, second: Any) -> bool:
    """Whether one positive number is not below another; of symbols of which it is not known, a guard says so."""
    if holds(first >= second) or holds(second >= first):
        return holds(first >= second)
    if equal(first % second, 0) or equal(second % first, 0):
        return equal(first % second, 0)
    return bool(first >= second)


def holds_at_present(condition: Any) -> bool:
    """Whether a condition holds, of which a guard says so where that is not known of its symbols."""
    if holds(condition):
        return True
    if not isinstance(condition, torch.SymBool) or not condition.node.has_hint() or not condition.node.hint:
        return False
    return bool(condition)


def may_all_hold(conditions: Sequence[torch.SymBool]) -> bool:
    """Whether numbers that data tell are found with which all conditions hold, the others being as they are at present.

    So do those that have been said of these numbers alone. Few are tried, small ones: what holds for large ones alone
    is not found.
    """
    if not conditions:
        return True
    env = conditions[0].node.shape_env
    asked = [one.node.expr.xreplace(env.backed_var_to_val) for one in conditions]
    symbols = sorted({symbol for expr in asked for symbol in expr.free_symbols}, key=str)
    said = [one.expr.xreplace(env.backed_var_to_val) for some in env.deferred_runtime_asserts.values() for one in some]
    asked += [expr for expr in said if expr.free_symbols <= set(symbols)]
    tried = [_some_within(env.var_to_range[symbol]) for symbol in symbols]
    some = itertools.islice(itertools.product(*tried), MOST_TRIED)
    return any(_hold_for(asked, dict(zip(symbols, values, strict=True))) for values in some)


def _hold_for(conditions: Sequence[Any], given: Mapping[Any, int]) -> bool:
    try:
        return all(bool(expr.subs(given)) for expr in conditions)
    except ZeroDivisionError:
        return False


#: How many sets of numbers are tried to find one with which conditions hold.
MOST_TRIED: Final = 256


def _some_within(bounds: Any) -> list[int]:
    """Some numbers between bounds, those first with which most conditions on sizes hold."""
    least = int(bounds.lower) if bounds.lower.is_Integer else 0
    return [least + more for more in (2, 3, 5, 7, 1, 0, 11, 16) if least + more <= bounds.upper]


def is_data_dependent(error: BaseException) -> bool:
    """Whether an error says that the value of a number was asked for which only a call has."""
    return any(kind.__name__ == "GuardOnDataDependentSymNode" for kind in type(error).__mro__)


def is_the_same(new: Any, old: Any) -> list[tuple[Any, Any]]:
    """Say that two results are of one computation: numbers of data in the new one are those of the old one.

    Gives the pairs of symbols that have become one, each new one first.
    """
    return [pair for mine, theirs in _pairs(new, old) if (pair := _become(mine, theirs)) is not None]


def take_known(new: Sequence[Any], old: Sequence[Any]) -> None:
    """Say that numbers of one computation are what has come to be known of them since it was first made."""
    for mine, before in zip(new, old, strict=True):
        known = known_value(before) if is_symbolic(before) else None
        if known is not None and is_unbacked(mine) and mine.node.expr.is_Symbol:
            mine.node.shape_env._set_replacement(mine.node.expr, before.node.expr, "it was computed before")


def _pairs(new: Any, old: Any) -> Iterator[tuple[Any, Any]]:
    """What is symbolic in both of two results of a call, number by number."""
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
