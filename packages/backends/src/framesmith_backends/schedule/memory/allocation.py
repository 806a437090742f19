"""The tensors of a launch list that have memory of their own, which nothing aliases."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence

from framesmith_aten.operators import is_custom, op_name
from framesmith_backends.ir.operators import CONVOLUTIONS
from framesmith_backends.ir.program import Layout, is_dense
from framesmith_backends.schedule.matmuls.operators import OPERANDS
from framesmith_backends.schedule.steps import Allocate, CallStep, Step

#: Matmuls and convolutions, whose results share no memory with their operands, nor with each other.
MATMULS = frozenset((*OPERANDS, *CONVOLUTIONS))
#: And oneDNN's, which not every torch has.
LINEAR = "_linear_pointwise"


def private_layouts(steps: Sequence[Step]) -> dict[str, Layout]:
    """Return the layouts of buffers and results of calls that no call may alias."""
    calls = [step for step in steps if isinstance(step, CallStep)]
    shared = {name for step in calls if not (gives_memory(step) or _is_item(step)) for name in step.call.needs}
    makers = {step.call.name for step in calls if gives_memory(step)}
    items = Counter(_item(step) for step in calls if _is_item(step))
    found = {step.name: step.layout for step in steps if isinstance(step, Allocate)}
    for step in calls:
        own = step.call.name in makers or (step.call.needs[:1] and step.call.needs[0] in makers and _is_item(step))
        if own and step.layout is not None and items[_item(step)] <= 1:
            found[step.call.name] = step.layout
    return {name: layout for name, layout in found.items() if name not in shared and is_dense(layout)}


def gives_memory(step: CallStep) -> bool:
    """Whether a call's results are memory of their own, whatever its operands are."""
    target = step.call.node.target
    if step.view is not None or is_custom(target):
        return False
    return target in MATMULS or (step.call.node.op == "call_function" and op_name(target) == LINEAR)


def _is_item(step: CallStep) -> bool:
    return step.view is None and step.call.node.target is operator.getitem


def _item(step: CallStep) -> tuple[object, ...]:
    return (step.call.needs, *step.call.node.args[1:])
