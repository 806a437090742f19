"""Sizes in LLVM IR: constants as themselves, those that change from the kernel's parameters, once at its start."""

from __future__ import annotations

from collections.abc import Callable

from framesmith_backends.ir.symbolic import size as sizes
from framesmith_backends.ir.symbolic.size import Size, Sym, Symbol, surely_positive
from framesmith_backends.render.llvm.builder import Builder, Value, constant
from framesmith_backends.render.llvm.loops.state import Rendering


def at_entry(r: Rendering, key: object, make: Callable[[], Value], known: bool = True) -> Value:
    """The value that `make` writes, once at the kernel's start where it is `known` there, else here."""
    return r.once(r.entry, key, make) if known else make()


def size_of(r: Rendering, size: Size) -> Value:
    """The size as an i64, known in every loop."""
    if not isinstance(size, Sym):
        return constant(size, "i64")
    known = {s: v for s, v in r.numbers.items() if isinstance(s, Symbol)}
    return at_entry(r, size, lambda: emit_size(r.b, size, known))


def divisor_of(r: Rendering, size: Size) -> Value:
    """The size as a divisor; 1 where it is 0, of which no quotient is used."""
    value = size_of(r, size)
    if not isinstance(size, Sym) or surely_positive(size):
        return value
    return at_entry(r, (size, "divisor"), lambda: _not_zero(r.b, value))


def _not_zero(b: Builder, value: Value) -> Value:
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
        divisor = _not_zero(b, divisor)
    if sizes.surely_at_least(atom.base, 0):
        return b.binary("udiv", base, divisor)
    # Towards minus infinity, as Python divides; machines do so for what is not negative.
    down = b.select(b.compare("slt", base, 0), b.sub(base, b.sub(divisor, 1)), base)
    return b.binary("sdiv", down, divisor)
