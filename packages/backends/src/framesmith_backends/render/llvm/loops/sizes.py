"""Sizes in LLVM IR: constants as themselves, those that change from the kernel's parameters, once at its start."""

from __future__ import annotations

from collections.abc import Callable

from framesmith_backends.ir.symbolic.size import (
    Atom,
    Extreme,
    Quotient,
    Size,
    Sym,
    Symbol,
    surely_at_least,
    surely_positive,
)
from framesmith_backends.render.llvm.builder import Builder, Value, constant
from framesmith_backends.render.llvm.loops.state import Rendering


def at_entry(r: Rendering, key: object, make: Callable[[], Value], known: bool = True) -> Value:
    """What `make` writes, written once at the kernel's start where it is `known` there, else here."""
    if not known:
        return make()
    found = r.sizes.get(key)
    if found is None:
        outside, r.b.out = r.b.out, r.entry
        found = r.sizes[key] = make()
        r.b.out = outside
    return found


def size_of(r: Rendering, size: Size) -> Value:
    """The size as an i64, known in every loop."""
    if not isinstance(size, Sym):
        return constant(size, "i64")
    return at_entry(
        r, size, lambda: emit_size(r.b, size, {s: v for s, v in r.numbers.items() if isinstance(s, Symbol)})
    )


def divisor_of(r: Rendering, size: Size) -> Value:
    """The size as a divisor: where it may be 0 nothing is divided in earnest, but the processor would stop."""
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


def _atom(b: Builder, atom: Atom, known: dict[Symbol, Value]) -> Value:
    if isinstance(atom, Symbol):
        return known[atom]
    if isinstance(atom, Extreme):
        one, other = emit_size(b, atom.a, known), emit_size(b, atom.b, known)
        return b.select(b.compare("sgt" if atom.largest else "slt", one, other), one, other)
    return _floor(b, atom, emit_size(b, atom.base, known), emit_size(b, atom.divisor, known))


def _floor(b: Builder, atom: Quotient, base: Value, divisor: Value) -> Value:
    """Towards minus infinity, as Python divides; machines do so for what is not negative."""
    if not surely_positive(atom.divisor):
        divisor = _not_zero(b, divisor)
    if surely_at_least(atom.base, 0):
        return b.binary("udiv", base, divisor)
    down = b.select(b.compare("slt", base, 0), b.sub(base, b.sub(divisor, 1)), base)
    return b.binary("sdiv", down, divisor)
