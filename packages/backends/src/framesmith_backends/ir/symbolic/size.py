"""Symbolic sizes: integer polynomials over symbols, floor quotients, maxima and minima.

A `Size` is an int, or a `Sym`. Arithmetic of the two gives an int wherever the result is known, so that static graphs
meet nothing but ints. Two `Sym`s that are equal as polynomials are one object. Comparisons say what holds for all
values in range; where that cannot be said they raise `Undecided`, which a lowering rule leaves to ATen.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache, reduce
from operator import and_

from framesmith_backends.ir.symbolic.interning import Node, interned


class Undecided(Exception):
    """A comparison of sizes that holds for some values and not for others."""


@interned
class Symbol(Node):
    """A number known at run time, at least `low` (None: any integer); `hint` is its value while tracing."""

    name: str
    low: int | None
    hint: int

    def __repr__(self) -> str:
        return self.name


@interned
class Quotient(Node):
    """floor(base / divisor)."""

    base: Size
    divisor: Size

    def __repr__(self) -> str:
        return f"({self.base} // {self.divisor})"


@interned
class Extreme(Node):
    """The larger (`largest`) or smaller of two sizes."""

    a: Size
    b: Size
    largest: bool

    def __repr__(self) -> str:
        return f"{'max' if self.largest else 'min'}({self.a}, {self.b})"


Atom = Symbol | Quotient | Extreme
Monomial = tuple[Atom, ...]


@interned
class Sym(Node):
    """A sum of coefficient * monomial of atoms, not a constant; terms and the atoms in each are sorted."""

    terms: tuple[tuple[Monomial, int], ...]

    def __repr__(self) -> str:
        return " + ".join(_term_text(m, k) for m, k in self.terms)

    def __add__(self, other: Size) -> Size:
        return _sum(self, other, 1)

    __radd__ = __add__

    def __sub__(self, other: Size) -> Size:
        return _sum(self, other, -1)

    def __rsub__(self, other: int) -> Size:
        return _sum(-self, other, 1)

    def __mul__(self, other: Size) -> Size:
        return _mul(self, other)

    __rmul__ = __mul__

    def __neg__(self) -> Sym:
        return Sym(tuple((m, -k) for m, k in self.terms))

    def __abs__(self) -> Size:
        return self if self >= 0 else -self

    def __floordiv__(self, other: Size) -> Size:
        return floor_quotient(self, other)

    def __rfloordiv__(self, other: int) -> Size:
        return floor_quotient(other, self)

    def __mod__(self, other: Size) -> Size:
        return self - other * floor_quotient(self, other)

    def __rmod__(self, other: int) -> Size:
        return other - self * floor_quotient(other, self)

    def __lt__(self, other: Size) -> bool:
        return not self >= other

    def __le__(self, other: Size) -> bool:
        return not self > other

    def __gt__(self, other: Size) -> bool:
        return decided(self - other, 1)

    def __ge__(self, other: Size) -> bool:
        return decided(self - other, 0)

    def __bool__(self) -> bool:
        return surely_positive(self) or surely_at_least(-1, self) or _undecided(f"whether {self} is 0")


Size = int | Sym


def _undecided(what: str) -> bool:
    raise Undecided(f"it depends on the sizes {what}")


def _term_text(monomial: Monomial, k: int) -> str:
    factors = [repr(a) for a in monomial]
    return "*".join(factors if k == 1 and factors else [str(k), *factors])


def symbol(name: str, low: int | None, hint: int) -> Sym:
    return Sym((((Symbol(name, low, hint),), 1),))


def _of(atom: Atom) -> Sym:
    return Sym((((atom,), 1),))


def _terms(a: Size) -> dict[Monomial, int]:
    return dict(a.terms) if isinstance(a, Sym) else {(): a}


def _order(monomial: Monomial) -> tuple[int, tuple[str, ...]]:
    """Graded, then by the atoms: an order that multiplication keeps."""
    return len(monomial), tuple(repr(a) for a in monomial)


def _made(terms: Mapping[Monomial, int]) -> Size:
    kept = {m: k for m, k in terms.items() if k}
    if not kept or kept.keys() == {()}:
        return kept.get((), 0)
    return Sym(tuple(sorted(kept.items(), key=lambda item: _order(item[0]), reverse=True)))


def _sum(a: Size, b: Size, factor: int) -> Size:
    terms = _terms(a)
    for monomial, k in _terms(b).items():
        terms[monomial] = terms.get(monomial, 0) + factor * k
    return _made(terms)


def _mul(a: Size, b: Size) -> Size:
    terms: dict[Monomial, int] = {}
    for m, k in _terms(a).items():
        for n, j in _terms(b).items():
            joined = tuple(sorted((*m, *n), key=repr))
            terms[joined] = terms.get(joined, 0) + k * j
    return _made(terms)


def _without(monomial: Monomial, part: Monomial) -> Monomial | None:
    """Return the monomial divided by a part of it; None if not divisible."""
    rest = list(monomial)
    for atom in part:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def exact_quotient(a: Size, b: Size) -> Size | None:
    """a / b as a polynomial where b divides a for all values, else None. Where b may be 0, so is what it divides."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    if a == 0:
        return 0
    rest, found = _terms(a), dict[Monomial, int]()
    lead, by = next(iter(_terms(b).items()))
    while rest:
        top = max(rest, key=_order)
        part = _without(top, lead)
        if part is None or not by or rest[top] % by:
            return None
        found[part] = k = rest[top] // by
        less = _mul(_made({part: k}), b)
        rest = {m: j for m, j in _terms(_sum(_made(rest), less, -1)).items() if j}
    return _made(found)


def is_multiple(a: Size, b: Size) -> bool:
    return exact_quotient(a, b) is not None


def floor_quotient(a: Size, b: Size) -> Size:
    """floor(a / b); exact division cancels, where b cannot be 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if isinstance(b, Sym) and not (surely_positive(b) or surely_at_least(-1, b)):
        return _of(Quotient(a, b))
    whole, rest = split_multiple(a, b)
    if rest == 0:
        return whole
    if surely_at_least(rest, 0) and surely_at_least(b - 1, rest):
        return whole
    if surely_at_least(-1, rest) and surely_at_least(rest + b, 0):
        return whole - 1
    return whole + _of(Quotient(rest, b))


def split_multiple(a: Size, b: Size) -> tuple[Size, Size]:
    """a == b * whole + rest, where `whole` has what b divides of `a` for all values but 0, term by term."""
    exact = exact_quotient(a, b)
    if exact is not None:
        return exact, 0
    whole: Size = 0
    rest = a
    for monomial, k in _terms(a).items():
        term = _made({monomial: k})
        part = term // b if isinstance(term, int) and isinstance(b, int) and b else exact_quotient(term, b)
        if part is not None:
            whole, rest = whole + part, rest - part * b
    exact = exact_quotient(rest, b)
    return (whole, rest) if exact is None else (whole + exact, 0)


def extreme(a: Size, b: Size, largest: bool) -> Size:
    """The larger or the smaller of two sizes, one of them where that is decided."""
    if surely_at_least(a, b):
        return a if largest else b
    if surely_at_least(b, a):
        return b if largest else a
    return _of(Extreme(a, b, largest))


def where_not_empty(a: Size) -> Size:
    """The size where no dimension is empty: strides count those as of size 1, which is `max(size, 1)`."""
    return _where_not_empty(a) if isinstance(a, Sym) else a


@lru_cache(maxsize=4096)
def _where_not_empty(a: Sym) -> Size:
    return sum((k * numel(_not_empty(atom) for atom in m) for m, k in a.terms), start=0)


def _not_empty(atom: Atom) -> Size:
    if isinstance(atom, Extreme) and atom.largest and 1 in (atom.a, atom.b):
        return where_not_empty(atom.b if atom.a == 1 else atom.a)
    return _of(atom)


def surely_at_least(a: Size, b: Size) -> bool:
    """Whether a >= b for all values."""
    difference = a - b
    return difference >= 0 if isinstance(difference, int) else _surely_natural(difference)


def surely_positive(a: Size) -> bool:
    return surely_at_least(a, 1)


def decided(difference: Size, bound: int) -> bool:
    """Whether difference >= bound; Undecided where that depends on the values."""
    if isinstance(difference, int):
        return difference >= bound
    if surely_at_least(difference, bound):
        return True
    if surely_at_least(bound - 1, difference):
        return False
    return _undecided(f"whether {difference} is at least {bound}")


def _low(atom: Atom) -> int | None:
    if isinstance(atom, Symbol):
        return atom.low
    if isinstance(atom, Quotient):
        low = lower_bound(atom.base)
        if isinstance(atom.divisor, int) and atom.divisor > 0 and low is not None:
            return low // atom.divisor
        return 0 if surely_at_least(atom.base, 0) and surely_at_least(atom.divisor, 0) else None
    lows = [lower_bound(atom.a), lower_bound(atom.b)]
    known = [low for low in lows if low is not None]
    if atom.largest:
        return max(known) if known else None
    return min(known) if len(known) == 2 else None


def lower_bound(a: Size) -> int | None:
    """A number that the size is never below, or None."""
    if isinstance(a, int):
        return a
    shifted = _shifted(a)
    if any(k < 0 or not _bounded(m) for m, k in shifted.items() if m):
        return None
    return shifted.get((), 0)


def _bounded(monomial: Monomial) -> bool:
    return all(_low(atom) is not None for atom in monomial)


@lru_cache(maxsize=4096)
def _shifted(a: Sym) -> dict[Monomial, int]:
    """The polynomial in what its atoms are above their lower bounds."""
    result: Size = 0
    for monomial, k in a.terms:
        term: Size = k
        for atom in monomial:
            term = term * (_of(atom) + (_low(atom) or 0))
        result = result + term
    return _terms(result)


@lru_cache(maxsize=4096)
def _surely_natural(a: Sym) -> bool:
    low = lower_bound(a)
    if low is not None:
        return low >= 0
    # Bound one quotient: with q = floor(b / d), d * q is between b - d + 1 and b.
    for monomial, k in a.terms:
        for atom in monomial:
            if isinstance(atom, Quotient) and monomial.count(atom) == 1 and surely_positive(atom.divisor):
                if k > 0 and _low(atom) == 0 and len(monomial) == 1:
                    continue
                bounded = _with_bound(a, atom)
                if bounded is not None and surely_at_least(bounded, 0):
                    return True
    return False


def _with_bound(a: Sym, atom: Quotient) -> Size | None:
    """divisor * a with the quotient replaced by what it is at least, or where that makes `a` less, at most."""
    result: Size = 0
    for monomial, k in a.terms:
        rest = _without(monomial, (atom,))
        if rest is None:
            result = result + _mul(_made({monomial: k}), atom.divisor)
        elif atom in rest or not _bounded(rest) or any((_low(r) or 0) < 0 for r in rest):
            return None
        else:
            bound = atom.base if k < 0 else atom.base - atom.divisor + 1
            result = result + _mul(_made({rest: k}), bound)
    return result


def total(sizes: Iterable[Size]) -> Size:
    """All of them added."""
    terms: dict[Monomial, int] = {}
    for size in sizes:
        for monomial, k in size.terms if isinstance(size, Sym) else (((), size),):
            terms[monomial] = terms.get(monomial, 0) + k
    return _made(terms)


def numel(sizes: Iterable[Size]) -> Size:
    """All of them multiplied."""
    result: Size = 1
    for size in sizes:
        result = result * size
    return result


def symbols(a: Size) -> frozenset[Symbol]:
    """The symbols the size is made of."""
    return frozenset() if isinstance(a, int) else _symbols(a)


@lru_cache(maxsize=4096)
def _symbols(a: Sym) -> frozenset[Symbol]:
    found: set[Symbol] = set()
    for monomial, _ in a.terms:
        for atom in monomial:
            found |= {atom} if isinstance(atom, Symbol) else symbols_of(operands(atom))
    return frozenset(found)


def symbols_of(sizes: Iterable[Size]) -> frozenset[Symbol]:
    return frozenset().union(*(symbols(size) for size in sizes if not isinstance(size, int)))


def operands(atom: Quotient | Extreme) -> tuple[Size, Size]:
    return (atom.base, atom.divisor) if isinstance(atom, Quotient) else (atom.a, atom.b)


def hint(a: Size) -> int:
    """The size while tracing: it decides what is fast, never what is right."""
    return a if isinstance(a, int) else _hint(a)


@lru_cache(maxsize=4096)
def _hint(a: Sym) -> int:
    return evaluate(a, {s: s.hint for s in symbols(a)})


def evaluate(a: Size, values: Mapping[Symbol, int]) -> int:
    """The size for these values of its symbols."""
    return a if isinstance(a, int) else sum(k * math.prod(_value(x, values) for x in m) for m, k in a.terms)


def _value(atom: Atom, values: Mapping[Symbol, int]) -> int:
    if isinstance(atom, Symbol):
        return values[atom]
    a, b = (evaluate(x, values) for x in operands(atom))
    if isinstance(atom, Quotient):
        return a // b if b else 0
    return max(a, b) if atom.largest else min(a, b)


def common_factor(a: Size, b: Size) -> Size:
    """A common divisor of two sizes: the integers', times the atoms that are in every term of both."""
    terms = [*_terms(a).items(), *_terms(b).items()]
    shared = reduce(and_, [Counter(monomial) for monomial, _ in terms])
    return _made({tuple(shared.elements()): math.gcd(*(k for _, k in terms))})


def size_text(a: Size, names: Mapping[Symbol, str]) -> str:
    """The size as a Python expression of named symbols."""
    if isinstance(a, int):
        return str(a)
    terms = ["*".join([*([str(k)] if k != 1 or not m else []), *(_atom_text(x, names) for x in m)]) for m, k in a.terms]
    return terms[0] if len(terms) == 1 else f"({' + '.join(terms)})"


def _atom_text(atom: Atom, names: Mapping[Symbol, str]) -> str:
    if isinstance(atom, Symbol):
        return names[atom]
    a, b = (size_text(x, names) for x in operands(atom))
    if isinstance(atom, Quotient):
        return f"({a} // {b})" if b.isidentifier() or b.isdecimal() else f"({a} // ({b}))"
    return f"{'max' if atom.largest else 'min'}({a}, {b})"
