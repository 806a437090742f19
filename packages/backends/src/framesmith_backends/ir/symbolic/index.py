"""Integer index expressions: affine sums over loop variables, floor divisions and remainders.

Every operation simplifies by the variables' ranges, so that a reshape of a reshape is affine again
whenever it can be. What is divided is never negative: machines, and Triton, round divisions towards zero.
Constants, coefficients, divisors and the sizes of variables are ints or symbolic (`ir.symbolic.size`).

An indirect index (gather, scatter) holds the data-dependent number as an `Indirect`. It is an operand of the expression
that the index belongs to (`expr.children`), and is rewritten as such: `substitute` leaves its variables as they are.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from math import gcd
from typing import Any
from weakref import WeakKeyDictionary

from framesmith_backends.ir.symbolic import size as sizes_
from framesmith_backends.ir.symbolic.interning import Node, interned, make
from framesmith_backends.ir.symbolic.size import Size, Sym, exact_quotient, surely_at_least


@interned
class Var(Node):
    """A loop variable with 0 <= value < size. Those of equal name and size are one variable.

    So each maker has spellings of its own:

    - d0, d1, ...: the axes of a tensor (`lower.tensor.axis`); x0, x1, ...: of a group (`schedule.fusion.domains`);
    - x: a line of elements (`schedule.horizontal`);
    - pz, pm, pn, pk, pp: batch, rows, columns, depth and parts of a matmul (`schedule.matmuls`, `ir.fused.matmul`);
    - of a variable v: vh and vl, its halves (`halves_of`); v_w, merged with w; v.8 and vp, intervals of it
      (`schedule.kernels`); vt and vp, its blocks and their points (`render.llvm.loops.transposed`).
    """

    name: str
    size: Size

    def __repr__(self) -> str:
        return self.name


@interned
class Div(Node):
    """floor(base / divisor), base >= 0, divisor > 0."""

    base: Ix
    divisor: Size

    def __repr__(self) -> str:
        return f"({self.base} // {self.divisor})"


@interned
class Mod(Node):
    """base - divisor * floor(base / divisor), base >= 0, divisor > 0."""

    base: Ix
    divisor: Size

    def __repr__(self) -> str:
        return f"({self.base} % {self.divisor})"


@interned
class Indirect(Node):
    """A data-dependent number: `value`, an expression, where 0 <= value < size, else 0; `inner` are its variables."""

    value: Node
    size: Size
    inner: frozenset[Var]

    def __repr__(self) -> str:
        found = _TEXTS.get(self)
        if found is None:
            found = _TEXTS[self] = f"{{{_shortened(repr(self.value))} < {self.size}}}"
        return found


#: Texts that were asked for, shortened: indirect indices nest deeply.
_TEXTS: WeakKeyDictionary[Indirect, str] = WeakKeyDictionary()
LONGEST_TEXT = 200


def _shortened(text: str) -> str:
    """The text, its rest as a number if it is long: terms are sorted by their texts."""
    rest = text[LONGEST_TEXT:]
    return f"{text[:LONGEST_TEXT]}...{zlib.crc32(rest.encode()):08x}" if rest else text


Atom = Var | Div | Mod | Indirect


class Ix(Node):
    """const + sum of coefficient * atom; terms are sorted by the atom's text and have no zero coefficient."""

    __slots__ = ("const", "terms")
    const: Size
    terms: tuple[tuple[Atom, Size], ...]

    def __new__(cls, const: Size, terms: tuple[tuple[Atom, Size], ...] = ()) -> Ix:
        return make(cls, const, terms)

    def __repr__(self) -> str:
        factors = ("" if k == 1 else f"({k})*" if isinstance(k, Sym) else f"{k}*" for _, k in self.terms)
        parts = [f"{factor}{atom}" for factor, (atom, _) in zip(factors, self.terms, strict=True)]
        if self.const != 0 or not parts:
            parts.append(str(self.const))
        return " + ".join(parts)


ZERO = Ix(0)


def const(value: Size) -> Ix:
    return Ix(value)


def of(atom: Atom) -> Ix:
    """The expression that is one atom; one of one value is that value."""
    if isinstance(atom, (Var, Indirect)) and atom.size == 1:
        return ZERO
    return Ix(0, ((atom, 1),))


def total(parts: Iterable[tuple[Ix, Size]], start: Size = 0) -> Ix:
    """start + the sum of factor * expression."""
    coefficients: dict[Atom, Size] = {}
    for expression, factor in parts:
        start += expression.const * factor
        for atom, k in expression.terms:
            coefficients[atom] = coefficients.get(atom, 0) + k * factor
    if any(isinstance(atom, Mod) for atom in coefficients):
        joined = _rejoin(coefficients)
        if joined is not None:
            return total(joined, start)
    return Ix(start, _sorted({a: k for a, k in coefficients.items() if k != 0}))


def _rejoin(coefficients: dict[Atom, Size]) -> list[tuple[Ix, Size]] | None:
    """Find k*d*(b // d) + k*(b % d), which is k*b; None where there is none."""
    for atom, k in coefficients.items():
        if not isinstance(atom, Mod) or k == 0:
            continue
        whole = floordiv(atom.base, atom.divisor)
        if whole.const != 0 or len(whole.terms) != 1:
            continue
        other, factor = whole.terms[0]
        if factor == 1 and coefficients.get(other) == k * atom.divisor:
            rest = [(of(a), c) for a, c in coefficients.items() if a is not atom and a is not other]
            return [*rest, (atom.base, k)]
    return None


def _sorted(terms: dict[Atom, Size]) -> tuple[tuple[Atom, Size], ...]:
    if len(terms) < 2:
        return tuple(terms.items())
    return tuple(sorted(terms.items(), key=lambda item: repr(item[0])))


def add(a: Ix, b: Ix) -> Ix:
    if not a.terms and a.const == 0:
        return b
    if not b.terms and b.const == 0:
        return a
    return total(((a, 1), (b, 1)))


def scale(a: Ix, factor: Size) -> Ix:
    if factor == 1:
        return a
    return total(((a, factor),))


def bounds(a: Ix) -> tuple[Size, Size]:
    """The smallest and largest value the ranges of the variables allow (not always reached)."""
    low = high = a.const
    for atom, k in a.terms:
        lo, hi = _atom_bounds(atom)
        if k >= 0:
            low += k * lo
            high += k * hi
        else:
            low += k * hi
            high += k * lo
    return low, high


def _atom_bounds(atom: Atom) -> tuple[Size, Size]:
    if isinstance(atom, (Var, Indirect)):
        return 0, atom.size - 1
    if isinstance(atom, Mod):
        return 0, atom.divisor - 1
    low, high = bounds(atom.base)
    return low // atom.divisor, high // atom.divisor


def is_fixed(a: Ix) -> bool:
    """Whether the expression's constant and coefficients, and the ranges of its variables, are all known."""
    if type(a.const) is not int:
        return False
    for atom, k in a.terms:
        if type(k) is not int:
            return False
        if isinstance(atom, (Var, Indirect)):
            if type(atom.size) is not int:
                return False
        elif type(atom.divisor) is not int or not is_fixed(atom.base):
            return False
    return True


def floordiv(a: Ix, divisor: Size) -> Ix:
    if divisor == 1:
        return a
    fixed = isinstance(divisor, int) and is_fixed(a)
    quotient, rest = _split(a, divisor, fixed)
    whole = _only_quotient(rest, divisor, fixed)
    if whole is not None:
        return add(quotient, Ix(whole))
    # floor((g*x + c) / (g*m)) = floor((x + floor(c/g)) / m)
    reduced, common = _reduced(rest, divisor, fixed, exact=not fixed)
    if common != 1:
        return add(quotient, floordiv(reduced, _exactly(divisor, common)))
    return add(quotient, _divided(rest, divisor))


def _divided(rest: Ix, divisor: Size) -> Ix:
    if len(rest.terms) == 1 and rest.const == 0 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if isinstance(atom, Div):
            return floordiv(atom.base, atom.divisor * divisor)
    return of(Div(rest, divisor))


def mod(a: Ix, divisor: Size) -> Ix:
    if divisor == 1:
        return ZERO
    fixed = isinstance(divisor, int) and is_fixed(a)
    _, rest = _split(a, divisor, fixed)
    whole = _only_quotient(rest, divisor, fixed)
    if whole is not None:
        return add(rest, Ix(-divisor * whole))
    reduced, common = _reduced(rest, divisor, fixed, exact=True)
    if common != 1:
        return scale(mod(reduced, _exactly(divisor, common)), common)
    return of(Mod(rest, divisor))


def _split(a: Ix, divisor: Size, fixed: bool) -> tuple[Ix, Ix]:
    """a == divisor * quotient + rest, with rest >= 0 and every coefficient of it not a multiple of divisor."""
    return _fixed_split(a, divisor) if fixed and isinstance(divisor, int) else _symbolic_split(a, divisor)


def _fixed_split(a: Ix, divisor: int) -> tuple[Ix, Ix]:
    terms = tuple((t, k) for t, k in a.terms if k % divisor)
    below = bounds(Ix(a.const % divisor, terms))[0] // divisor
    lift = min(below, 0)
    quotient = Ix(a.const // divisor + lift, tuple((t, k // divisor) for t, k in a.terms if k % divisor == 0))
    return quotient, Ix(a.const % divisor - lift * divisor, terms)


def _symbolic_split(a: Ix, divisor: Size) -> tuple[Ix, Ix]:
    """The same by what is a multiple for all sizes. Inside loops over it no size is 0: a division by it cancels."""
    quotient: list[tuple[Atom, Size]] = []
    rest: list[tuple[Atom, Size]] = []
    for atom, k in a.terms:
        part = exact_quotient(k, divisor)
        if part is None:
            rest.append((atom, k))
        else:
            quotient.append((atom, part))
    whole, remaining = sizes_.split_multiple(a.const, divisor)
    left = Ix(remaining, tuple(rest))
    low, _ = bounds(left)
    if not surely_at_least(low, 0):
        # Counting down: multiples of the divisor taken out must go back in.
        if not surely_at_least(low + divisor, 0):
            quotient, left, whole = [], a, 0
            if not surely_at_least(bounds(a)[0], 0):
                raise sizes_.Undecided(f"whether {a} is negative, which is to be divided")
        else:
            whole, left = whole - 1, Ix(left.const + divisor, left.terms)
    return Ix(whole, tuple(quotient)), left


def _only_quotient(rest: Ix, divisor: Size, fixed: bool) -> Size | None:
    """The quotient of the rest where it is the same for all values of the variables."""
    low, high = bounds(rest)
    if fixed:
        return low // divisor if low // divisor == high // divisor else None
    return 0 if surely_at_least(divisor - 1, high) else None


def _reduced(rest: Ix, divisor: Size, fixed: bool, *, exact: bool) -> tuple[Ix, Size]:
    """(rest / common, common): a factor of the divisor and of all coefficients, and if `exact` of the constant."""
    parts = [*([rest.const] if exact else []), *(k for _, k in rest.terms)]
    if fixed:
        common: Size = gcd(divisor, *parts)  # type: ignore[arg-type]
    else:
        common = reduce(sizes_.common_factor, [k for k in parts if k != 0], divisor)
    if common == 1:
        return rest, 1
    const = _exactly(rest.const, common) if exact else rest.const // common
    return Ix(const, tuple((t, _exactly(k, common)) for t, k in rest.terms)), common


def _exactly(a: Size, b: Size) -> Size:
    found = exact_quotient(a, b)
    assert found is not None
    return found


def substitute(a: Ix, values: Mapping[Any, Ix]) -> Ix:
    """Replace variables, or data-dependent numbers; those not in `values` stay."""
    if not a.terms or not values:
        return a
    return total(((_atom_value(atom, values), k) for atom, k in a.terms), a.const)


def _atom_value(atom: Atom, values: Mapping[Any, Ix]) -> Ix:
    if isinstance(atom, (Var, Indirect)):
        found = values.get(atom)
        return of(atom) if found is None else found
    base = substitute(atom.base, values)
    return floordiv(base, atom.divisor) if isinstance(atom, Div) else mod(base, atom.divisor)


def variables(a: Ix) -> frozenset[Var]:
    found: set[Var] = set()
    for atom, _ in a.terms:
        found |= _variables(atom)
    return frozenset(found)


def _variables(atom: Atom) -> frozenset[Var]:
    if isinstance(atom, Var):
        return frozenset((atom,))
    return atom.inner if isinstance(atom, Indirect) else variables(atom.base)


def indirect_atoms(a: Ix) -> tuple[Indirect, ...]:
    """Return the data-dependent numbers, each once."""
    found: dict[Indirect, None] = {}
    for atom, _ in a.terms:
        if isinstance(atom, Indirect):
            found[atom] = None
        elif not isinstance(atom, Var):
            found.update(dict.fromkeys(indirect_atoms(atom.base)))
    return tuple(found)


def coefficient(a: Ix, var: Var) -> Size | None:
    """The stride of `a` along `var`; None where `var` occurs inside a division, a remainder or an `Indirect`."""
    result: Size = 0
    for atom, k in a.terms:
        if atom is var:
            result = k
        elif not isinstance(atom, Var) and var in _variables(atom):
            return None
    return result


def block_offsets(a: Ix, var: Var, count: int) -> tuple[int, ...] | None:
    """Return the index at each of `count` values of `var`, from a multiple of `count` on, less that at the first.

    None where that differs between multiples, or is not known.
    """
    offsets = [0] * count
    for atom, k in a.terms:
        of_atom = _atom_offsets(atom, var, count)
        if of_atom is None:
            return None
        if any(of_atom):
            if not isinstance(k, int):
                return None
            offsets = [total + k * own for total, own in zip(offsets, of_atom, strict=True)]
    return tuple(offsets)


def _atom_offsets(atom: Atom, var: Var, count: int) -> Sequence[int] | None:
    if var not in _variables(atom):
        return [0] * count
    if isinstance(atom, Var):
        return range(count)
    if isinstance(atom, Indirect) or not isinstance(atom.divisor, int) or not isinstance(atom.base.const, int):
        return None
    step, others = coefficient(atom.base, var), [k for other, k in atom.base.terms if other is not var]
    if not all(isinstance(k, int) and k % atom.divisor == 0 for k in others):
        return None
    if not isinstance(step, int) or step * count % atom.divisor:
        return None
    # What is divided is, at every multiple of `count`, a multiple of the divisor and this.
    first = atom.base.const % atom.divisor
    quotients = [(first + step * k) // atom.divisor for k in range(count)]
    if isinstance(atom, Div):
        return quotients
    return [step * k - atom.divisor * quotient for k, quotient in enumerate(quotients)]


def symbols(a: Ix) -> frozenset[sizes_.Symbol]:
    """The symbols in the expression itself (those in the ranges of its variables are not)."""
    found = sizes_.symbols_of((a.const, *(k for _, k in a.terms)))
    for atom, _ in a.terms:
        if isinstance(atom, Indirect):
            found |= sizes_.symbols(atom.size)
        elif not isinstance(atom, Var):
            found |= sizes_.symbols(atom.divisor) | symbols(atom.base)
    return found


def halves_of(var: Var, high: Size, low: Size) -> tuple[Var, Var, Ix]:
    """Return variables of these sizes, and `var` as an expression in them, where its size is high * low."""
    first, second = Var(f"{var.name}h", high), Var(f"{var.name}l", low)
    return first, second, total(((of(first), low), (of(second), 1)))


def linearize(index: Iterable[Ix], sizes: Iterable[Size]) -> Ix:
    """The row-major position of `index` in a shape of `sizes`."""
    result = ZERO
    for position, size in zip(index, sizes, strict=True):
        result = total(((result, size), (position, 1)))
    return result


def delinearize(flat: Ix, sizes: tuple[Size, ...]) -> tuple[Ix, ...]:
    """The inverse of `linearize`."""
    result: list[Ix] = []
    for size in reversed(sizes[1:]):
        result.append(mod(flat, size))
        flat = floordiv(flat, size)
    if sizes:
        result.append(flat if sizes[0] != 1 else ZERO)
    return tuple(reversed(result))
