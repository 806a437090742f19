"""`torch.cond` of a condition that the trace knows: the call of one branch, as in eager mode."""

from __future__ import annotations

import torch

from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import handles, named
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_dynamo.values.torch_api.tables import HIGHER_ORDER


@handles(torch.cond)
def cond(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`torch.cond(pred, true_fn, false_fn, operands)`."""
    given = named(tr, torch.cond, args, kwargs, ("pred", "true_fn", "false_fn", "operands"), 3)
    if isinstance(given["pred"], TensorValue) or not issubclass(given["pred"].python_type(), (bool, int, float)):
        raise GraphBreak(HIGHER_ORDER, "torch.cond of a condition that depends on data")
    branch = given["true_fn"] if given["pred"].bool_(tr) else given["false_fn"]
    return tr.call(branch, given["operands"].unpack(tr) if "operands" in given else (), {})
