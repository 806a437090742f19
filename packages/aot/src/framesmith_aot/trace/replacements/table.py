"""The table of replaced torch calls, and its lookup."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace.control_flow import branches, loops, shared
from framesmith_aot.trace.replacements import derivatives, operators, optimizers, recurrent
from framesmith_aten.graphs import control_flow
from framesmith_aten.graphs.autograd_calls import through_one_node
from framesmith_aten.operators import op_name
from framesmith_guards.torch_adapter import OpOverload, aten

#: Torch functions and tensor methods, and the functions of the same meaning that are traced in their place.
REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    **recurrent.REPLACEMENTS,
    **optimizers.REPLACEMENTS,
    **branches.REPLACEMENTS,
    **loops.REPLACEMENTS,
    control_flow.invoke_subgraph: shared.invoke_subgraph,
    through_one_node: operators.through_one_node,
    torch.batch_norm: operators.batch_norm,
    F.batch_norm: operators.functional_batch_norm,
    F.one_hot: operators.one_hot,
    **dict.fromkeys((torch.rms_norm, F.rms_norm), operators.rms_norm),
    torch.max_pool1d: operators.max_pool1d,
    F.max_pool1d: operators.functional_max_pool1d,
    torch.Tensor.tolist: operators.tolist,
    **dict.fromkeys((torch.masked_select, torch.Tensor.masked_select), derivatives.masked_select),
    **dict.fromkeys((torch.bernoulli, aten.bernoulli.out), operators.bernoulli),
    **dict.fromkeys((torch.slice_scatter, torch.Tensor.slice_scatter), operators.slice_scatter),
    **dict.fromkeys((torch.prod, torch.Tensor.prod), derivatives.prod),
    **dict.fromkeys((torch.cumsum, torch.Tensor.cumsum), derivatives.cumsum),
    **dict.fromkeys((torch.cumprod, torch.Tensor.cumprod), derivatives.cumprod),
    **dict.fromkeys((torch.max, torch.Tensor.max), derivatives.one_of_all(torch.max)),
    **dict.fromkeys((torch.min, torch.Tensor.min), derivatives.one_of_all(torch.min)),
    **dict.fromkeys((torch.median, torch.Tensor.median), derivatives.one_of_all(torch.median)),
    **dict.fromkeys((torch.nanmedian, torch.Tensor.nanmedian), derivatives.one_of_all(torch.nanmedian)),
}

#: Calls that the trace may hold as such, with derivatives of their own that autograd does not differentiate again.
HELD_AS_CALLS = frozenset(
    {*recurrent.REPLACEMENTS, *branches.REPLACEMENTS, *loops.REPLACEMENTS, control_flow.invoke_subgraph}
)


def called(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function, or its replacement."""
    instead = _replacement(target)
    if instead is None:
        return target(*args, **kwargs)
    if isinstance(target, OpOverload):
        args, kwargs = _by_position(target, args, kwargs)
    return instead(*args, **in_torchs_names(kwargs))


def _replacement(target: Any) -> Callable[..., Any] | None:
    """Return the replacement of a call, or None.

    An operator that a program calls itself (an exported one) is replaced like torch's function of its name, unless it
    has an out argument.
    """
    if target in REPLACEMENTS:
        return REPLACEMENTS[target]
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return None
    if any(argument.is_out for argument in target._schema.arguments):
        return None
    name = op_name(target)
    return REPLACEMENTS.get(getattr(torch, name, None) or getattr(unstable.nn, name, None))


def _by_position(
    target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments with those given by schema names at their positions, which Python functions share."""
    found, rest = [*args], {**kwargs}
    for argument in target._schema.arguments[len(args) :]:
        if argument.kwarg_only or argument.name not in rest:
            break
        found.append(rest.pop(argument.name))
    return found, rest


#: NumPy's argument names, which torch's C functions also take.
NUMPYS_NAMES = {"axis": "dim", "keepdims": "keepdim", "a": "input", "x": "input", "x1": "input", "x2": "other"}


def in_torchs_names(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {NUMPYS_NAMES.get(name, name): value for name, value in kwargs.items()}
