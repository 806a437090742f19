"""Bounds of symbolic numbers: whether 64 bits hold the intermediate results of kernels.

Note [64 bits]: kernels compute with 64 bits and wrap around, Python does not. Sums and products that fit in the end
are right whatever came between; what is divided, or chosen as the larger, has to fit itself. Lengths, strides and
offsets of tensors do, and so do multiplied lengths of one tensor, which are offsets in its memory; numbers that the
program computes with may be anything. What may not fit is computed by the launcher, and given to the kernel.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from framesmith_aten.graphs.numbers import numbers_of
from framesmith_aten.symbolic import has_symbols

#: The most memory of a machine: the elements of a tensor, and each of its lengths unless it repeats them.
MOST_ELEMENTS = 2**47
#: One more than a number of 64 bits can be.
BEYOND = 2**63

#: Operations that need their operands whole, by the names of the expressions' classes; others wrap around.
_DIVISIONS = frozenset({"FloorDiv", "CleanDiv"})
REMAINDERS = frozenset({"Mod", "PythonMod"})
_EXTREMES = frozenset({"Max", "Min"})
NEED_WHOLE = _DIVISIONS | REMAINDERS | _EXTREMES


@dataclass(slots=True)
class Magnitudes:
    """Bounds of the expressions of one graph. `together` are the lengths of each tensor, `of_tensors` its symbols."""

    of_tensors: set[Any] = field(default_factory=set)
    together: list[Counter[Any]] = field(default_factory=list)

    def learn(self, value: object) -> None:
        """Bind the symbols of a tensor's layout."""
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or not has_symbols(value):
            return
        numbers = numbers_of(value)
        for number in numbers.values():
            self.of_tensors |= number.node.expr.free_symbols
        factors = _factors(number.node.expr for (what, _), number in numbers.items() if what == "size")
        if factors and factors not in self.together:
            self.together.append(factors)

    def fits(self, expr: Any, env: Any) -> bool:
        """Whether 64 bits hold the number at every call."""
        return expr.is_Symbol or self._most(expr, env) < BEYOND

    def _most(self, expr: Any, env: Any) -> int:
        """A bound of the number's size, or BEYOND and more."""
        if expr.is_Integer:
            return abs(int(expr))
        if expr.is_Symbol:
            return self._of_symbol(expr, env)
        kind = type(expr).__name__
        if expr.is_Add:
            return sum(self._most(part, env) for part in expr.args)
        if expr.is_Mul or expr.is_Pow:
            return self._of_mul(expr, env)
        if kind in _DIVISIONS:
            divisor = expr.args[1]
            return self._most(expr.args[0], env) // (abs(int(divisor)) if divisor.is_Integer and divisor else 1) + 1
        if kind in REMAINDERS:
            return self._most(expr.args[1], env)
        if kind in _EXTREMES:
            return max(self._most(part, env) for part in expr.args)
        return BEYOND

    def _of_symbol(self, symbol: Any, env: Any) -> int:
        known = env.var_to_range.get(symbol)
        ends = [abs(int(end)) for end in (known.lower, known.upper) if end.is_Integer] if known is not None else []
        most = max(ends) if len(ends) == 2 else BEYOND
        return min(most, MOST_ELEMENTS) if symbol in self.of_tensors else most

    def _of_mul(self, expr: Any, env: Any) -> int:
        powers = _powers(expr)
        if powers is None:
            return BEYOND
        result, symbols = 1, Counter[Any]()
        for base, times in powers:
            if base.is_Symbol:
                symbols[base] += times
            else:
                result *= self._most(base, env) ** times
        bound: int = math.prod(self._of_symbol(symbol, env) ** times for symbol, times in symbols.items())
        if any(symbols <= factors for factors in self.together):
            bound = min(bound, MOST_ELEMENTS)
        return result * bound


def _factors(lengths: Iterable[Any]) -> Counter[Any]:
    """The symbols that the lengths multiply, beside the other factors."""
    found = Counter[Any]()
    for length in lengths:
        for base, times in _powers(length) or ():
            if base.is_Symbol:
                found[base] += times
    return found


def _powers(expr: Any) -> list[tuple[Any, int]] | None:
    """The factors of a multiplication, with their exponents; None where one is no whole power."""
    pairs = [part.as_base_exp() for part in (expr.args if expr.is_Mul else (expr,))]
    if not all(times.is_Integer and times > 0 for _, times in pairs):
        return None
    return [(base, int(times)) for base, times in pairs]
