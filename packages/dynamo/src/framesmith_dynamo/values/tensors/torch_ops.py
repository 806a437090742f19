"""Operator objects, `torch.ops.namespace.name[.overload]` and custom operators: calls go into the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torch._library.custom_ops import CustomOpDef
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.tensors.torch_tables import HIGHER_ORDER
from framesmith_dynamo.values.wrap_registry import builds_family, wraps_family

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source

OPERATORS: Final = (OpOverload, OpOverloadPacket, CustomOpDef, HigherOrderOperator)


class TorchOpValue(Value):
    """An operator, known by identity."""

    python_types = OPERATORS
    exact_operators = True
    __slots__ = ("op",)

    def __init__(self, op: Any, *, source: Source | None = None) -> None:
        super().__init__(source=source)
        self.op = op

    def python_type(self) -> type:
        return type(self.op)

    def describe(self) -> str:
        return f"operator {self.op}"

    def is_constant(self) -> bool:
        return True

    def as_constant(self) -> Any:
        return self.op

    def hash_key(self, tr: Tracer) -> object:
        return self.op

    def getattr_(self, tr: Tracer, name: str) -> Value:
        try:
            return tr.constant(getattr(self.op, name))
        except AttributeError as error:
            tr.raise_(AttributeError, *error.args)

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        if isinstance(self.op, HigherOrderOperator):
            raise GraphBreak(HIGHER_ORDER, self.describe())
        target = self.op._opoverload if isinstance(self.op, CustomOpDef) else self.op
        return tr.call_torch(target, args, kwargs)

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None:
            super().reconstruct(codegen)
        else:
            codegen.load_const(self.op)


def _is_operator(obj: Any) -> bool:
    return issubclass(type(obj), OPERATORS)


@wraps_family(_is_operator, priority=2)
def wrap_operator(tr: Tracer, obj: Any, source: Source) -> Value:
    """An operator met at a source: the same at every call."""
    tr.guard(source, "ID_MATCH", obj)
    return TorchOpValue(obj, source=source)


builds_family(_is_operator)(lambda tr, obj: TorchOpValue(obj))
