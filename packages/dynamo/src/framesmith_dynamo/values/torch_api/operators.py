"""Operator objects, `torch.ops.namespace.name[.overload]`, and custom operators: calls are recorded in the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from framesmith_aten.checks.kernels_in_python import runs_while_traced
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.torch_adapter import CustomOpDef, HigherOrderOperator
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import find_handler
from framesmith_dynamo.values.known import KnownValue
from framesmith_dynamo.values.torch_api.tables import HIGHER_ORDER
from framesmith_dynamo.values.wrap_registry import Family, builds_family, wraps_family
from framesmith_guards.torch_adapter import OpOverload, OpOverloadPacket

if TYPE_CHECKING:
    from framesmith_guards import Source

KERNEL_IN_PYTHON = register_break(
    "kernel-in-python",
    what="an operator is called whose kernel is a Python function that runs for fake tensors, too",
    why="its effects other than computing tensors would occur while tracing, and not at later calls",
    hint="use torch.library.custom_op, and register_fake for its fake; make a composite operator a plain function",
)

OPERATORS: Final = (OpOverload, OpOverloadPacket, CustomOpDef, HigherOrderOperator)


class TorchOpValue(KnownValue):
    """An operator, known by identity."""

    python_types = OPERATORS
    exact_operators = True
    __slots__ = ()

    def describe(self) -> str:
        return f"operator {self.obj}"

    def getattr_(self, tr: Tracer, name: str) -> Value:
        try:
            return tr.constant(getattr(self.obj, name))
        except AttributeError as error:
            tr.raise_(AttributeError, *error.args)

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        handler = find_handler(self.obj)
        if handler is not None:
            return handler(tr, args, kwargs)
        if isinstance(self.obj, HigherOrderOperator):
            raise GraphBreak(HIGHER_ORDER, self.describe())
        target = self.obj._opoverload if isinstance(self.obj, CustomOpDef) else self.obj
        if any(map(runs_while_traced, _overloads(target))):
            raise GraphBreak(KERNEL_IN_PYTHON, self.describe())
        return tr.call_torch(target, args, kwargs)


def _overloads(target: Any) -> list[Any]:
    return [target] if isinstance(target, OpOverload) else [getattr(target, name) for name in target.overloads()]


def _is_operator(obj: Any) -> bool:
    return issubclass(type(obj), OPERATORS)


@wraps_family(Family.OPERATOR, _is_operator)
def wrap_operator(tr: Tracer, obj: Any, source: Source) -> Value:
    """Wrap an operator found at a source, guarded by identity."""
    tr.guard(source, "ID_MATCH", obj)
    return TorchOpValue(obj, source=source)


builds_family(Family.OPERATOR, _is_operator)(lambda tr, obj: TorchOpValue(obj))
