"""A pending method call: the name is kept in the call's first slot, so that no bound method is created."""

from __future__ import annotations

from collections.abc import Iterable
from types import MethodType
from typing import TYPE_CHECKING

from framesmith_bytecode import NULL_FIRST
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen

#: The slots of a call that are NULL when they hold a callable that is no method.
CALLABLE_SLOTS = (True, False) if NULL_FIRST else (False, True)


def callable_slots(fn: Value) -> list[Value | None]:
    """Return the two slots of a call of `fn`, in this Python's order."""
    return [None if is_null else fn for is_null in CALLABLE_SLOTS]


class MethodSlot(Value):
    """The slot that LOAD_METHOD leaves under the object: `owner.name`, not looked up yet."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: Value, name: str) -> None:
        super().__init__()
        self.owner = owner
        self.name = name

    def python_type(self) -> type:
        return MethodType

    def describe(self) -> str:
        return f"method {self.name!r} of {self.owner.describe()}"

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        """Called with the owner as the first argument, as the two slots say."""
        assert args and args[0] is self.owner
        return self.owner.call_method_first(tr, self.name, args[1:], kwargs)

    def referents(self) -> Iterable[Value]:
        return (self.owner,)

    def reconstruct(self, codegen: Codegen) -> None:
        """Push the bound method; the other slot is then NULL (see `residual.resume`)."""
        codegen(self.owner)
        codegen.load_attr(self.name)
