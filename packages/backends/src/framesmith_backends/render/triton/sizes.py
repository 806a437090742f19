"""Sizes in Triton source: constants as themselves, those that change from parameters, once at the kernel's start."""

from __future__ import annotations

from framesmith_backends.ir.symbolic.size import (
    Atom,
    Extreme,
    Size,
    Sym,
    Symbol,
    operands,
    surely_at_least,
    surely_positive,
    symbols,
)
from framesmith_backends.render.triton.state import Writing


def size_of(w: Writing, size: Size) -> str:
    """The size as a 64-bit integer that is known in every block of lines."""
    if not isinstance(size, Sym):
        return str(size)
    names = w.scopes[0].names
    if ("size", size) not in names:
        terms = [_monomial(w, monomial, k) for monomial, k in size.terms]
        text = " + ".join(terms)
        names["size", size] = text if text.isidentifier() else w.fresh(text, w.scopes[0])
    return names["size", size]


def step_of(w: Writing, size: Size) -> str:
    """The size, where places in memory or a mask of the lanes depend on it."""
    w.stepping |= symbols(size)
    return size_of(w, size)


def _monomial(w: Writing, monomial: tuple[Atom, ...], k: int) -> str:
    factors = [_atom(w, atom) for atom in monomial]
    return " * ".join([str(k), *factors] if k != 1 or not factors else factors)


def _atom(w: Writing, atom: Atom) -> str:
    if isinstance(atom, Symbol):
        return w.numbers[atom]
    a, b = (size_of(w, operand) for operand in operands(atom))
    if isinstance(atom, Extreme):
        return f"tl.where({a} {'>' if atom.largest else '<'} {b}, {a}, {b})"
    if surely_at_least(atom.base, 0) and surely_positive(atom.divisor):
        return f"({a} // {b})"
    return f"fs.floor_quotient({a}, {b})"
