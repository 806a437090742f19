"""Indices of constants: equal constants share one only if they are interchangeable."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from types import CodeType
from typing import Final

_PLAIN: Final = (int, bool, str, bytes, type(None), type(Ellipsis))


def constant_key(value: object) -> Hashable:
    """Equal keys mean interchangeable constants: same type all the way down, same bits (0.0 and -0.0 differ)."""
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if kind is float:
        assert isinstance(value, float)
        return kind, value.hex() if value == value else id(value)
    if kind is complex:
        assert isinstance(value, complex)
        return kind, constant_key(value.real), constant_key(value.imag)
    if kind is tuple:
        assert isinstance(value, tuple)
        return kind, tuple(map(constant_key, value))
    if kind is frozenset:
        assert isinstance(value, frozenset)
        return kind, frozenset(map(constant_key, value))
    return kind, id(value)


def same_constant(left: object, right: object) -> bool:
    """Whether the constants are interchangeable. Code objects are compared by `==`."""
    if isinstance(left, CodeType) and isinstance(right, CodeType):
        return left == right
    return constant_key(left) == constant_key(right)


class ConstantPool:
    """The `co_consts` being built: begins with the given constants and grows by those requested."""

    __slots__ = ("_by_id", "_by_key", "values")

    def __init__(self, given: Iterable[object]) -> None:
        self.values = list(given)
        self._by_id = {id(value): index for index, value in reversed(list(enumerate(self.values)))}
        self._by_key: dict[Hashable, int] | None = None

    def index(self, value: object) -> int:
        """Index of the constant, which is added if missing."""
        known = self._by_id.get(id(value))
        if known is not None:
            return known
        if self._by_key is None:
            self._by_key = {constant_key(have): at for at, have in reversed(list(enumerate(self.values)))}
        key = constant_key(value)
        known = self._by_key.get(key)
        if known is None:
            known = self._by_key[key] = len(self.values)
            self.values.append(value)
            self._by_id[id(value)] = known
        return known
