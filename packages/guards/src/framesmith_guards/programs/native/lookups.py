"""Types whose attributes torch asks for by C strings, found as fast as by names of Python's."""

from __future__ import annotations

from framesmith_guards.programs.native.probing import extension


def interned_lookups(base: type, names: tuple[str, ...]) -> type:
    """Return a subclass of `base` that looks these attributes up by interned names; `base` itself without C.

    CPython's cache of attributes does not know a str that C code has just made. Nothing else changes, for instances of
    the subclass (classes, where `base` is a metaclass) and of what is derived from it.
    """
    native, _ = extension()
    if native is None:
        return base
    made: type = native.interned_lookups(base, names)
    return made
