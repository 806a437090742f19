"""Torch's symbolic numbers with a memo of operations.

Making a fake asks some forty questions of its sizes and strides, most of them repeated; torch's nodes answer each with
sympy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from framesmith_guards.torch_adapter import SymNode

if TYPE_CHECKING:
    from framesmith_guards.torch_adapter import ShapeEnv

_BINARY: Final = (
    "add", "sub", "mul", "floordiv", "int_floordiv", "mod", "eq", "ne", "gt", "lt", "le", "ge", "sym_min", "sym_max",
    "sym_and", "sym_or", "and_", "or_",
)  # fmt: skip
_UNARY: Final = ("neg", "sym_not", "sym_float")
_plain_expr: Any = getattr(vars(SymNode).get("expr"), "fget", None)


class LightNode(SymNode):
    """A number of a ShapeEnv whose `number_results` memoise operations."""

    shape_env: ShapeEnv
    _replaced_at = _known_at = -1
    """Counts of the ShapeEnv's replacements at which `_replaced` and `_known` were computed."""
    _replaced: Any = None
    _known: int | None = None

    @property
    def expr(self) -> Any:
        """The expression with replaced symbols substituted."""
        at = self.shape_env._replacements_version_counter
        if self._replaced_at != at:
            self._replaced_at, self._replaced = at, _plain_expr(self)
        return self._replaced

    @property
    def _optimized_summation(self) -> bool:
        """Whether the expression is a sum of different symbols in order, which torch adds to term by term.

        Torch's answer is of the time the node was made: a sum that has since become a number has no terms, and adding
        to it lost them.
        """
        return bool(vars(self).get("_optimized_summation")) and self.expr is self._expr

    @_optimized_summation.setter
    def _optimized_summation(self, value: bool) -> None:
        vars(self)["_optimized_summation"] = value

    def maybe_as_int(self) -> int | None:
        """Return the value that the number is known to have, or None."""
        at = self.shape_env._replacements_version_counter
        if self._known_at != at:
            self._known_at, self._known = at, SymNode.maybe_as_int(self)
        return self._known

    def with_shape_env(self, shape_env: Any) -> LightNode:
        return LightNode(self._expr, shape_env, self.pytype, self._hint, self.constant, self.fx_node)

    def truediv(self, other: SymNode) -> SymNode:
        """Return the quotient for C++; Python calls `float_truediv` or `int_truediv`.

        C++ divides by a present 0, too: guards then fix both operands.
        """
        if self.has_hint() and other.has_hint() and other.hint == 0:
            divisor, dividend = other.guard_float("", 0), self.guard_float("", 0)
            quotient = torch.tensor(dividend, dtype=torch.float64) / divisor
            return self.wrap_float(quotient.item())
        return SymNode.truediv(self, other)

    def wrap_int(self, num: int) -> SymNode:
        return _remembered(self, ("int", num), lambda: SymNode.wrap_int(self, num))

    def wrap_float(self, num: float) -> SymNode:
        """Return a constant, without the memo: 0.0 equals -0.0."""
        found = SymNode.wrap_float(self, num)
        found.__class__ = LightNode
        return found


def _remembered(node: LightNode, key: Any, find: Callable[[], SymNode]) -> SymNode:
    results: dict[Any, SymNode] = node.shape_env.framesmith_notes.number_results  # type: ignore[attr-defined]
    found = results.get(key)
    if found is None:
        found = find()
        if type(found) is SymNode:
            found.__class__ = LightNode
        results[key] = found
    return found


def _binary(name: str) -> Callable[[LightNode, SymNode], SymNode]:
    plain = getattr(SymNode, name)

    def method(self: LightNode, other: SymNode) -> SymNode:
        if not isinstance(other, SymNode):
            return plain(self, other)
        key = (name, self._expr, self.pytype, other._expr, other.pytype)
        return _remembered(self, key, lambda: plain(self, other))

    return method


def _unary(name: str) -> Callable[[LightNode], SymNode]:
    plain = getattr(SymNode, name)

    def method(self: LightNode) -> SymNode:
        return _remembered(self, (name, self._expr, self.pytype), lambda: plain(self))

    return method


for _name in _BINARY:
    if hasattr(SymNode, _name):
        setattr(LightNode, _name, _binary(_name))
for _name in _UNARY:
    if hasattr(SymNode, _name):
        setattr(LightNode, _name, _unary(_name))
