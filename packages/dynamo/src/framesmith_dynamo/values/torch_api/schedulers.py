"""Schedulers of learning rates: their steps are left to Python, after the graph.

Note [Steps of schedulers]: a scheduler computes with its own numbers and those of the optimizer's groups, and goes
another way through Python at some steps, each of which would need an entry. The graph needs none of it: it takes the
rates as numbers. So the call is made as it is, after the graph, among the other changes of the trace, and the rates are
symbols from the second trace on. The call is interpreted where the trace goes on to use what it changes, where rates
are tensors, and where functions of the program's take part that may change something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakMethod

from torch.optim import lr_scheduler, swa_utils

from framesmith_dynamo.admission.number_functions import changes_nothing
from framesmith_dynamo.admission.owners import part_of_torch
from framesmith_dynamo.values.callables import Handler, handles
from framesmith_dynamo.values.constants.constant import ConstantValue
from framesmith_dynamo.values.containers import DictValue
from framesmith_dynamo.values.functions.functions import FunctionValue
from framesmith_dynamo.values.objects.objects import ObjectValue
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_guards import ItemSource

if TYPE_CHECKING:
    from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value

_RATE: Final = "lr"
_PARAMETERS: Final = "params"
#: The attribute in which a scheduler has others, whose steps it makes.
_INNER: Final = "_schedulers"


def _steps() -> Iterator[FunctionType]:
    """Return the functions by which torch's schedulers make a step."""
    for found in (*vars(lr_scheduler).values(), *vars(swa_utils).values()):
        if isinstance(found, type) and issubclass(found, lr_scheduler.LRScheduler) and "step" in vars(found):
            yield vars(found)["step"]


def _stepping(function: FunctionType) -> Handler:
    """Return the handler of a scheduler's step."""

    def handler(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        if args and _leave(tr, function, args, kwargs):
            return tr.constant(None)
        return cast(FunctionValue, tr.constant(function)).interpret(tr, args, kwargs)

    return handler


def _leave(tr: Tracer, function: FunctionType, args: Args, kwargs: Kwargs) -> bool:
    """Leave a step to Python, after the graph; False where it is interpreted."""
    scheduler, *given = (*args, *kwargs.values())
    if tr.facts.follows_calls or not all(isinstance(one, ConstantValue | TensorValue) for one in given):
        return False
    schedulers = _with_inner(tr, scheduler)
    if schedulers is None:
        return False
    groups = _groups(tr, schedulers)
    if groups is None or not tr.leave_call(function, args, kwargs, (*schedulers, *groups)):
        return False
    for group in groups:
        for key in group.entries:
            if key != _PARAMETERS:
                group.hand_over(tr, key)
        assert group.source is not None
        tr.expect_changes(ItemSource(group.source, _RATE))
    return True


def _with_inner(tr: Tracer, value: Value) -> list[ObjectValue] | None:
    """Return a scheduler and those in it; None if one is none of torch's, or may change something else."""
    if not isinstance(value, ObjectValue) or value.is_new or part_of_torch(value.cls.__module__) is None:
        return None
    if not _guard_functions(tr, value):
        return None
    found = [value]
    for inner in value.getattr_(tr, _INNER).unpack(tr) if _INNER in vars(value.obj) else ():
        more = _with_inner(tr, inner)
        if more is None:
            return None
        found += more
    return found


def _guard_functions(tr: Tracer, scheduler: ObjectValue) -> bool:
    """Guard the functions of the program that a scheduler holds; return whether all it holds change nothing."""
    for name, held in vars(scheduler.obj).items():
        for index, function in enumerate(held if type(held) is list else (held,)):
            if name == _INNER or not callable(function) or _is_torchs(function):
                continue
            if not changes_nothing(function):
                return False
            value = scheduler.getattr_(tr, name)
            place = value.unpack(tr)[index] if type(held) is list else value
            assert place.source is not None
            tr.guard(place.source, "ID_MATCH", function)
    return True


def _is_torchs(function: Any) -> bool:
    """Whether a function is torch's, also as a method, or with arguments given before."""
    if isinstance(function, WeakMethod):
        function = function()
    if isinstance(function, partial):
        function = function.func
    if isinstance(function, MethodType):
        function = function.__func__
    return isinstance(function, FunctionType) and part_of_torch(str(function.__globals__.get("__name__"))) is not None


def _groups(tr: Tracer, schedulers: Sequence[ObjectValue]) -> list[DictValue] | None:
    """Return the groups of the schedulers' optimizers; None if a rate is a tensor, or the trace has changed a group."""
    found: dict[int, DictValue] = {}
    for scheduler in schedulers:
        if "optimizer" not in vars(scheduler.obj):  # a scheduler of others
            continue
        for group in scheduler.getattr_(tr, "optimizer").getattr_(tr, "param_groups").unpack(tr):
            if not isinstance(group, DictValue) or group.source is None or tr.journal.is_mutated(group):
                return None
            found[id(group)] = group
    return [*found.values()] if all(_reads_numbers(tr, group) for group in found.values()) else None


def _reads_numbers(tr: Tracer, group: DictValue) -> bool:
    """Whether the rate of a group is a number, unless a call before is known to change it, and none of it a tensor."""
    if _RATE not in group.entries:
        return False
    if not group.is_handed_over(_RATE) and not isinstance(group.getitem(tr, tr.constant(_RATE)), ConstantValue):
        return False
    held = (entry.value for key, entry in group.entries.items() if key != _PARAMETERS)
    return not any(isinstance(one, TensorValue) for one in held)


for _function in {*_steps()}:
    handles(_function)(_stepping(_function))
