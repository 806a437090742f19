"""Sizes in LLVM IR: constants as themselves, symbolic ones from their symbols' values."""

from __future__ import annotations

from framesmith_backends.ir.symbolic import size as sizes
from framesmith_backends.ir.symbolic.size import Size, Sym, Symbol, surely_positive
from framesmith_backends.render.llvm.builder import Builder, Value, constant


def not_zero(b: Builder, value: Value) -> Value:
    """The value as a divisor; 1 where it is 0, of which no quotient is used."""
    return b.select(b.compare("eq", value, 0), constant(1, "i64"), value)


def emit_size(b: Builder, size: Size, known: dict[Symbol, Value]) -> Value:
    """The size in terms of its symbols' values."""
    if not isinstance(size, Sym):
        return constant(size, "i64")
    total: Value | None = None
    for monomial, k in size.terms:
        term = constant(k, "i64")
        for at, atom in enumerate(monomial):
            value = _atom(b, atom, known)
            term = value if at == 0 and k == 1 else b.mul(term, value)
        total = term if total is None else b.add(total, term)
    assert total is not None
    return total


def _atom(b: Builder, atom: sizes.Atom, known: dict[Symbol, Value]) -> Value:
    if isinstance(atom, Symbol):
        return known[atom]
    if isinstance(atom, sizes.Extreme):
        one, other = emit_size(b, atom.a, known), emit_size(b, atom.b, known)
        return b.select(b.compare("sgt" if atom.largest else "slt", one, other), one, other)
    base, divisor = emit_size(b, atom.base, known), emit_size(b, atom.divisor, known)
    if not surely_positive(atom.divisor):
        divisor = not_zero(b, divisor)
    if sizes.surely_at_least(atom.base, 0):
        return b.binary("udiv", base, divisor)
    # Towards minus infinity, as Python divides; machines do so for what is not negative.
    down = b.select(b.compare("slt", base, 0), b.sub(base, b.sub(divisor, 1)), base)
    return b.binary("sdiv", down, divisor)
