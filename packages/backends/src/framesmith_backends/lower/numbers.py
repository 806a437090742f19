"""Symbolic numbers of a graph: torch's expressions as sizes of the loop IR, and where their symbols are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import torch

from framesmith_aten.graphs.numbers import binds, numbers_of
from framesmith_backends.ir.program import SymbolBinding
from framesmith_backends.ir.symbolic import size
from framesmith_backends.ir.symbolic.size import Size, Sym, Symbol
from framesmith_backends.lower.magnitudes import NEED_WHOLE, REMAINDERS, Magnitudes
from framesmith_backends.torch_adapter import unstable

# What the size of a tensor that depends on data is taken to be where a guess is wanted.
UNBACKED_HINT = 256


@dataclass(slots=True)
class Numbers:
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
        if kind in REMAINDERS:
            known = _only_value(expr, env)
            if known is not None:
                return known
        make = _FUNCTIONS.get(kind)
        if kind in NEED_WHOLE and not all(self.magnitudes.fits(part, env) for part in expr.args):
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
    return _mul(divisor, part)  # type: ignore[return-value]


def _known_divisor(expr: Any, env: Any) -> int:
    """A number that divides the symbol at every call, as the guards say: what it was split into is then exact."""
    divisors = [fact.args[1] for fact in env.divisible if fact.args[0] == expr]
    return math.lcm(*(int(divisor) for divisor in divisors if divisor.is_Integer))


def _total(*parts: Size) -> Size:
    return size.total(parts)


def _mul(*parts: Size) -> Size:
    return size.numel(parts)


def _power(base: Size, exponent: Size) -> Size | None:
    return _mul(*[base] * exponent) if isinstance(exponent, int) and 0 < exponent <= 4 else None


def _remainder(a: Size, b: Size) -> Size | None:
    return a % b if size.surely_positive(b) else None


def _quotient(a: Size, b: Size) -> Size | None:
    return a // b if size.surely_at_least(b, 0) else None


def _extreme(largest: bool) -> Callable[..., Size]:
    def of(first: Size, *rest: Size) -> Size:
        for other in rest:
            first = size.extreme(first, other, largest)
        return first

    return of


# By the names of sympy's classes, and of torch's own.
_FUNCTIONS: dict[str, Callable[..., Size | None]] = {
    "Add": _total, "Mul": _mul, "Pow": _power, "PowByNatural": _power, "FloorDiv": _quotient,
    "CleanDiv": _quotient, "Mod": _remainder, "PythonMod": _remainder, "Max": _extreme(True), "Min": _extreme(False),
}  # fmt: skip
