"""Integer index expressions: affine sums over loop variables, floor divisions and remainders.

Every operation simplifies by the variables' ranges, so that a reshape of a reshape is affine again
whenever it can be. What is divided is never negative: machines, and Triton, round divisions towards zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import gcd

from framesmith_backends.ir.interning import Node, make


class Var(Node):
    """A loop variable with 0 <= value < size."""

    __slots__ = ("name", "size")
    name: str
    size: int

    def __new__(cls, name: str, size: int) -> Var:
        return make(cls, name, size)

    def __repr__(self) -> str:
        return self.name


class Div(Node):
    """floor(base / divisor), base >= 0, divisor > 0."""

    __slots__ = ("base", "divisor")
    base: Ix
    divisor: int

    def __new__(cls, base: Ix, divisor: int) -> Div:
        return make(cls, base, divisor)

    def __repr__(self) -> str:
        return f"({self.base} // {self.divisor})"


class Mod(Node):
    """base - divisor * floor(base / divisor), base >= 0, divisor > 0."""

    __slots__ = ("base", "divisor")
    base: Ix
    divisor: int

    def __new__(cls, base: Ix, divisor: int) -> Mod:
        return make(cls, base, divisor)

    def __repr__(self) -> str:
        return f"({self.base} % {self.divisor})"


Atom = Var | Div | Mod


class Ix(Node):
    """const + sum of coefficient * atom; terms are sorted by the atom's text and have no zero coefficient."""

    __slots__ = ("const", "terms")
    const: int
    terms: tuple[tuple[Atom, int], ...]

    def __new__(cls, const: int, terms: tuple[tuple[Atom, int], ...] = ()) -> Ix:
        return make(cls, const, terms)

    def __repr__(self) -> str:
        parts = [f"{k}*{atom}" if k != 1 else f"{atom}" for atom, k in self.terms]
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts)


ZERO = Ix(0)


def const(value: int) -> Ix:
    return Ix(value)


def of(atom: Atom) -> Ix:
    """The expression that is one atom; a variable of one value is that value."""
    if isinstance(atom, Var) and atom.size == 1:
        return ZERO
    return Ix(0, ((atom, 1),))


def total(parts: Iterable[tuple[Ix, int]], start: int = 0) -> Ix:
    """start + the sum of factor * expression."""
    coefficients: dict[Atom, int] = {}
    for expression, factor in parts:
        start += expression.const * factor
        for atom, k in expression.terms:
            coefficients[atom] = coefficients.get(atom, 0) + k * factor
    if any(isinstance(atom, Mod) for atom in coefficients):
        joined = _rejoin(coefficients)
        if joined is not None:
            return total(joined, start)
    return Ix(start, _sorted({a: k for a, k in coefficients.items() if k}))


def _rejoin(coefficients: dict[Atom, int]) -> list[tuple[Ix, int]] | None:
    """Find k*d*(b // d) + k*(b % d), which is k*b; None where there is none."""
    for atom, k in coefficients.items():
        if not isinstance(atom, Mod) or not k:
            continue
        whole = floordiv(atom.base, atom.divisor)
        if whole.const or len(whole.terms) != 1:
            continue
        other, factor = whole.terms[0]
        if factor == 1 and coefficients.get(other) == k * atom.divisor:
            rest = [(of(a), c) for a, c in coefficients.items() if a is not atom and a is not other]
            return [*rest, (atom.base, k)]
    return None


def _sorted(terms: dict[Atom, int]) -> tuple[tuple[Atom, int], ...]:
    if len(terms) < 2:
        return tuple(terms.items())
    return tuple(sorted(terms.items(), key=lambda item: repr(item[0])))


def add(a: Ix, b: Ix) -> Ix:
    if not a.terms and not a.const:
        return b
    if not b.terms and not b.const:
        return a
    return total(((a, 1), (b, 1)))


def scale(a: Ix, factor: int) -> Ix:
    if factor == 1:
        return a
    return total(((a, factor),))


def bounds(a: Ix) -> tuple[int, int]:
    """The smallest and largest value the ranges of the variables allow (not always reached)."""
    low = high = a.const
    for atom, k in a.terms:
        lo, hi = _atom_bounds(atom)
        low += min(k * lo, k * hi)
        high += max(k * lo, k * hi)
    return low, high


def _atom_bounds(atom: Atom) -> tuple[int, int]:
    if isinstance(atom, Var):
        return 0, atom.size - 1
    if isinstance(atom, Mod):
        return 0, atom.divisor - 1
    low, high = bounds(atom.base)
    return low // atom.divisor, high // atom.divisor


def _split(a: Ix, divisor: int) -> tuple[Ix, Ix]:
    """a == divisor * quotient + rest, with rest >= 0 and every coefficient of it not a multiple of divisor."""
    terms = tuple((t, k) for t, k in a.terms if k % divisor)
    below = bounds(Ix(a.const % divisor, terms))[0] // divisor
    lift = min(below, 0)
    quotient = Ix(a.const // divisor + lift, tuple((t, k // divisor) for t, k in a.terms if k % divisor == 0))
    return quotient, Ix(a.const % divisor - lift * divisor, terms)


def floordiv(a: Ix, divisor: int) -> Ix:
    if divisor == 1:
        return a
    quotient, rest = _split(a, divisor)
    low, high = bounds(rest)
    if low // divisor == high // divisor:
        return add(quotient, Ix(low // divisor))
    common = gcd(divisor, *(k for _, k in rest.terms))
    if common > 1:
        # floor((g*x + c) / (g*m)) = floor((x + floor(c/g)) / m)
        reduced = Ix(rest.const // common, tuple((t, k // common) for t, k in rest.terms))
        return add(quotient, floordiv(reduced, divisor // common))
    if len(rest.terms) == 1 and rest.const == 0 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if isinstance(atom, Div):
            return add(quotient, floordiv(atom.base, atom.divisor * divisor))
    return add(quotient, of(Div(rest, divisor)))


def mod(a: Ix, divisor: int) -> Ix:
    if divisor == 1:
        return ZERO
    _, rest = _split(a, divisor)
    low, high = bounds(rest)
    if low // divisor == high // divisor:
        return add(rest, Ix(-divisor * (low // divisor)))
    common = gcd(divisor, rest.const, *(k for _, k in rest.terms))
    if common > 1:
        reduced = Ix(rest.const // common, tuple((t, k // common) for t, k in rest.terms))
        return scale(mod(reduced, divisor // common), common)
    return of(Mod(rest, divisor))


def substitute(a: Ix, values: Mapping[Var, Ix]) -> Ix:
    """Replace variables; those not in `values` stay."""
    if not a.terms:
        return a
    return total(((_atom_value(atom, values), k) for atom, k in a.terms), a.const)


def _atom_value(atom: Atom, values: Mapping[Var, Ix]) -> Ix:
    if isinstance(atom, Var):
        found = values.get(atom)
        return of(atom) if found is None else found
    base = substitute(atom.base, values)
    return floordiv(base, atom.divisor) if isinstance(atom, Div) else mod(base, atom.divisor)


def variables(a: Ix) -> frozenset[Var]:
    found: set[Var] = set()
    for atom, _ in a.terms:
        if isinstance(atom, Var):
            found.add(atom)
        else:
            found |= variables(atom.base)
    return frozenset(found)


def coefficient(a: Ix, var: Var) -> int | None:
    """The stride of `a` along `var`; None where `var` occurs inside a division or remainder."""
    result = 0
    for atom, k in a.terms:
        if atom is var:
            result = k
        elif not isinstance(atom, Var) and var in variables(atom.base):
            return None
    return result


def evaluate(a: Ix, values: Mapping[Var, int]) -> int:
    result = a.const
    for atom, k in a.terms:
        if isinstance(atom, Var):
            value = values[atom]
        elif isinstance(atom, Div):
            value = evaluate(atom.base, values) // atom.divisor
        else:
            value = evaluate(atom.base, values) % atom.divisor
        result += k * value
    return result


def linearize(index: Iterable[Ix], sizes: Iterable[int]) -> Ix:
    """The row-major position of `index` in a shape of `sizes`."""
    result = ZERO
    for position, size in zip(index, sizes, strict=True):
        result = total(((result, size), (position, 1)))
    return result


def delinearize(flat: Ix, sizes: tuple[int, ...]) -> tuple[Ix, ...]:
    """The inverse of `linearize`."""
    result: list[Ix] = []
    for k, size in enumerate(reversed(sizes)):
        if k == len(sizes) - 1:
            result.append(flat if size != 1 else ZERO)
        elif size == 1:
            result.append(ZERO)
        else:
            result.append(mod(flat, size))
            flat = floordiv(flat, size)
    return tuple(reversed(result))
