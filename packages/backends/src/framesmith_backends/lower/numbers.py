"""Symbolic numbers of a graph: torch's expressions as sizes of the loop IR, and where their symbols are read.

Note [64 bits]: kernels compute with 64 bits and wrap around, Python does not. Sums and products that fit in the end
are right whatever came between; what is divided, or chosen as the larger, has to fit itself. Lengths, strides and
offsets of tensors do, and so do multiplied lengths of one tensor, which are offsets in its memory; numbers that the
program computes with may be anything. What may not fit is computed by the launcher, and given to the kernel.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import reduce
from numbers import Integral
from typing import Any

import torch

from framesmith_aten.graphs.numbers import binds, numbers_of
from framesmith_aten.symbolic import has_symbols
from framesmith_backends.ir.program import SymbolBinding
from framesmith_backends.ir.symbolic import size
from framesmith_backends.ir.symbolic.size import Size, Sym, Symbol
from framesmith_backends.torch_adapter import unstable

# What the size of a tensor that depends on data is taken to be where a guess is wanted.
UNBACKED_HINT = 256
#: The most memory of a machine: the elements of a tensor, and each of its lengths unless it repeats them.
MOST_ELEMENTS = 2**47
#: One more than a number of 64 bits can be.
BEYOND = 2**63

#: Operations that need their operands whole, by the names of the expressions' classes; others wrap around.
_DIVISIONS = frozenset({"FloorDiv", "CleanDiv"})
_REMAINDERS = frozenset({"Mod", "PythonMod"})
_EXTREMES = frozenset({"Max", "Min"})
_NEED_WHOLE = _DIVISIONS | _REMAINDERS | _EXTREMES


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
        if kind in _REMAINDERS:
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


@dataclass(slots=True)
class SizeConverter:
    """The sizes of one graph. `bindings` says where symbols are read; one without cannot be computed with."""

    bindings: dict[Symbol, SymbolBinding] = field(default_factory=dict)
    known: dict[Any, Size | None] = field(default_factory=dict)
    magnitudes: Magnitudes = field(default_factory=Magnitudes)

    def size_of(self, number: int | torch.SymInt) -> Size | None:
        """The number as a size; None where it is made of what sizes have not."""
        if isinstance(number, int):
            return number
        node = number.node
        constant = node.maybe_as_int()
        return self._converted(node.expr, node.shape_env) if constant is None else constant

    def readable(self, number: int | torch.SymInt) -> Size | None:
        """The number as a size whose symbols can all be read when the graph runs, or None."""
        found = self.size_of(number)
        if found is None or isinstance(found, int):
            return found
        return found if size.symbols(found) <= self.bindings.keys() else None

    def sizes(self, numbers: Iterable[int | torch.SymInt]) -> tuple[Size, ...] | None:
        """All of them as sizes that can be read, or None."""
        found = [self.readable(number) for number in numbers]
        return None if any(one is None for one in found) else tuple(found)  # type: ignore[arg-type]

    def _converted(self, expr: Any, env: Any) -> Size | None:
        if expr not in self.known:
            self.known[expr] = self._convert(expr, env)
        return self.known[expr]

    def _convert(self, expr: Any, env: Any) -> Size | None:
        if expr.is_Symbol:
            return _symbol(expr, env)
        if expr.is_Integer:
            return int(expr)
        kind = type(expr).__name__
        if kind == "Max" and len(expr.args) == 2:
            # What the guards say of the two may be more than their symbols' ranges do.
            for larger, other in (expr.args, expr.args[::-1]):
                if unstable.statically_known_true(env.create_symboolnode(larger >= other)):
                    return self._converted(larger, env)
        if kind in _REMAINDERS:
            known = _only_value(expr, env)
            if known is not None:
                return known
        make = _FUNCTIONS.get(kind)
        if kind in _NEED_WHOLE and not all(self.magnitudes.fits(part, env) for part in expr.args):
            return None  # see Note [64 bits]
        parts = [self._converted(part, env) for part in expr.args]
        if make is None or not parts or any(part is None for part in parts):
            return None
        return make(*parts)

    def own(self, number: torch.SymInt, source: str) -> Sym:
        """A number that kernels do not compute, as the runtime value `source` holds it."""
        env, expr = number.node.shape_env, number.node.expr
        found = size.symbol(source, None, _likely(_present(expr, env)))
        [symbol] = size.symbols(found)
        self.bindings[symbol] = SymbolBinding(source, "number")
        self.known[expr] = found
        return found

    def bind(self, value: object, source: str, *, plain: bool) -> None:
        """Bind the symbols of the runtime value `source`. With `plain` symbols that stand by themselves alone."""
        if isinstance(value, torch.SymInt):
            self._bind(value, SymbolBinding(source, "number"), plain)
        elif isinstance(value, torch.Tensor) and value.layout == torch.strided:
            for (what, dim), number in numbers_of(value).items():
                self._bind(number, SymbolBinding(source, what, dim), plain, value)

    def _bind(self, number: Any, binding: SymbolBinding, plain: bool, of: torch.Tensor | None = None) -> None:
        found = self.size_of(number)
        if not isinstance(found, Sym):
            return
        match [term for term in found.terms if term[0]]:
            case [((Symbol() as symbol,), factor)] if symbol not in self.bindings:
                shift = found - factor * size.symbol(symbol.name, symbol.low, symbol.hint)
                assert isinstance(shift, int)
                if (not plain or (factor, shift) == (1, 0)) and (of is None or binds(of, (binding.what, binding.dim))):
                    self.bindings[symbol] = SymbolBinding(binding.source, binding.what, binding.dim, factor, shift)


def _present(expr: Any, env: Any) -> int | None:
    """The number as it is while compiling; None where it is unbacked."""
    value = expr.xreplace(env.backed_var_to_val)
    return int(value) if value.is_Integer else None


def _likely(present: int | None, least: int | None = None) -> int:
    """The number as it is while compiling, or a guess of at least that."""
    return max(UNBACKED_HINT, least or 0) if present is None else present


def _only_value(expr: Any, env: Any) -> int | None:
    """The number, where the guards say that it is the same at every call."""
    present = _present(expr, env)
    if present is None or not unstable.statically_known_true(env.create_symintnode(expr, hint=present) == present):
        return None
    return present


def _symbol(expr: Any, env: Any) -> Sym:
    low = env.var_to_range[expr].lower if expr in env.var_to_range else None
    least = int(low) if isinstance(low, Integral) else None
    if expr in env.size_like:
        least = max(least or 0, 0)
    hint = _likely(_present(expr, env), least)
    divisor = _known_divisor(expr, env)
    if divisor == 1 or hint % divisor:
        return size.symbol(expr.name, least, hint)
    part = size.symbol(f"{expr.name}/{divisor}", None if least is None else -(-least // divisor), hint // divisor)
    return size.numel((divisor, part))  # type: ignore[return-value]


def _known_divisor(expr: Any, env: Any) -> int:
    """A number that divides the symbol at every call, as the guards say: what it was split into is then exact."""
    divisors = [fact.args[1] for fact in env.divisible if fact.args[0] == expr]
    return math.lcm(*(int(divisor) for divisor in divisors if divisor.is_Integer))


def _power(base: Size, exponent: Size) -> Size | None:
    return size.numel([base] * exponent) if isinstance(exponent, int) and 0 < exponent <= 4 else None


def _remainder(a: Size, b: Size) -> Size | None:
    return a % b if size.surely_positive(b) else None


def _quotient(a: Size, b: Size) -> Size | None:
    return a // b if size.surely_at_least(b, 0) else None


def _extreme(largest: bool) -> Callable[..., Size]:
    return lambda *parts: reduce(lambda a, b: size.extreme(a, b, largest), parts)


# By the names of sympy's classes, and of torch's own.
_FUNCTIONS: dict[str, Callable[..., Size | None]] = {
    "Add": lambda *parts: size.total(parts), "Mul": lambda *parts: size.numel(parts), "Pow": _power,
    "PowByNatural": _power, "FloorDiv": _quotient, "CleanDiv": _quotient, "Mod": _remainder, "PythonMod": _remainder,
    "Max": _extreme(True), "Min": _extreme(False),
}  # fmt: skip
