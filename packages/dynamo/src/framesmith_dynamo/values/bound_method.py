"""A pending method call of a builtin object: `xs.append`, `"".join`."""

from __future__ import annotations

from types import BuiltinMethodType
from typing import TYPE_CHECKING

from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from framesmith_bytecode import Codegen


class BuiltinMethodValue(Value):
    """`owner.name`; a call is the owner's `call_method`."""

    python_types = (BuiltinMethodType,)
    exact_operators = True
    __slots__ = ("name", "owner")

    def __init__(self, owner: Value, name: str) -> None:
        super().__init__()
        self.owner = owner
        self.name = name

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        return self.owner.call_method(tr, self.name, args, kwargs)

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.owner
        if name == "__name__":
            return tr.constant(self.name)
        return super().getattr_(tr, name)

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if op not in ("==", "!=") or not isinstance(other, BuiltinMethodValue):
            return None
        same = self.owner is other.owner and self.name == other.name
        return tr.constant(same is (op == "=="))

    def referents(self) -> Iterable[Value]:
        return (self.owner,)

    def reconstruct(self, codegen: Codegen) -> None:
        codegen(self.owner)
        codegen.load_attr(self.name)
