"""`torch._check` and its kin: the program's assertions about numbers become facts of the trace."""

from __future__ import annotations

from typing import Any, Final

from framesmith_aten.assumptions import Asserted
from framesmith_dynamo.breaks import DATA_DEPENDENT, GraphBreak
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values import operations
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import Handler, handles, named
from framesmith_dynamo.values.constants.symbolic import SymbolicNumber
from framesmith_guards.needs import of_torch
from framesmith_guards.torch_adapter import GuardOnDataDependentSymNode, aten

#: The functions that check a condition, and the exceptions that they raise.
CHECKS: Final[dict[Any, type[Exception]]] = {
    unstable.check: RuntimeError,
    of_torch("torch._check_value"): ValueError,
    of_torch("torch._check_index"): IndexError,
    of_torch("torch._check_type"): TypeError,
    of_torch("torch._check_not_implemented"): NotImplementedError,
}


def _checking(function: Any, error: type[Exception]) -> Handler:
    def check(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        given = named(tr, function, args, kwargs, ("cond", "message"), 1)
        promise(tr, given["cond"], error, given.get("message"))
        return tr.constant(None)

    return check


def promise(tr: Tracer, condition: Value, error: type[Exception], message: Value | None = None) -> None:
    """Assume a condition that the program asserts; raises its error if it is false now.

    For unbacked numbers it becomes a runtime assertion.
    """
    if not holds(tr, condition):
        text = "Expected cond to be True, but got False. (Could this error message be improved?)"
        said = tr.constant(text) if message is None or message.is_none() else message
        tr.raise_(error, tr.call(said, (), {}) if not issubclass(said.python_type(), str) else said)


for _function, _error in CHECKS.items():
    handles(_function)(_checking(_function, _error))


def holds(
    tr: Tracer, condition: Value, by: Asserted = Asserted.PROGRAM, text: str = "the program's torch._check fails"
) -> bool:
    """Whether a condition holds: assumed from now on, and for unbacked numbers asserted when the graph runs.

    `by`: the origin of the assumption; `text`: the message if it does not hold then.
    """
    if not (condition.is_symbolic() and isinstance(condition, SymbolicNumber)):
        return condition.bool_(tr)
    builder = condition.ref.builder
    builder.check_assumptions()
    try:
        answer = unstable.expect_true(condition.as_number())
    except GuardOnDataDependentSymNode as failed:
        raise GraphBreak(DATA_DEPENDENT, condition.describe()) from failed
    builder.check_assumptions(by, text)
    return bool(answer)


_CHECK_IS_SIZE: Final = of_torch("torch._check_is_size")


@handles(_CHECK_IS_SIZE)
def _check_is_size(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`torch._check_is_size(i, message=None, *, max=None)`."""
    given = named(tr, _CHECK_IS_SIZE, args, kwargs, ("i", "message", "max"), 1)
    size, most = given["i"], given.get("max")
    promise(tr, operations.compare(tr, ">=", size, tr.constant(0)), RuntimeError, given.get("message"))
    if most is not None and not most.is_none():
        promise(tr, operations.compare(tr, "<=", size, most), RuntimeError, given.get("message"))
    return tr.constant(None)


@handles(of_torch("torch.ops.aten._assert_scalar"), aten._assert_scalar.default)
def _assert_scalar(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`aten._assert_scalar(self, assert_msg)`, the runtime assertion operator of graphs, called by a program."""
    given = named(tr, aten._assert_scalar.default, args, kwargs, ("self", "assert_msg"), 2)
    condition = given["self"]
    if condition.is_symbolic():
        raise GraphBreak(DATA_DEPENDENT, f"_assert_scalar of {condition.describe()}; use torch._check")
    promise(tr, condition, RuntimeError, given["assert_msg"])
    return tr.constant(None)
