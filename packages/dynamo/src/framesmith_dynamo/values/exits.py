"""The exits of open `with` blocks, as values of the stack."""

from __future__ import annotations

from collections.abc import Iterable
from types import MethodType
from typing import TYPE_CHECKING

from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen


class ExitValue(Value):
    """The `__exit__` that a `with` statement saves for the end of its block."""

    __slots__ = ("manager",)

    def __init__(self, manager: Value) -> None:
        super().__init__()
        self.manager = manager

    def python_type(self) -> type:
        return MethodType

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        return self.manager.exit_(tr, args)

    def referents(self) -> Iterable[Value]:
        return (self.manager,)

    def reconstruct(self, codegen: Codegen) -> None:
        codegen(self.manager)
        codegen.load_attr("__exit__")
