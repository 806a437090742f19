"""Flex attention: the function, torch's operator under it, and the constructor of block masks.

They are interpreted as their polyfills in `polyfills/flex_attention.py`, with score_mod and mask_mod recorded for all
scores. Where torch rejects a call the graph breaks, and torch's own function raises.
"""

from __future__ import annotations

import functools
import inspect
from types import FunctionType
from typing import Any, Final

import torch
from torch.nn.attention import flex_attention as flex

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.polyfills import flex_attention as polyfill
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import handles
from framesmith_dynamo.values.containers import TupleValue
from framesmith_dynamo.values.errors import refuse
from framesmith_dynamo.values.functions.functions import FunctionValue
from framesmith_dynamo.values.higher_order.elementwise import elementwise
from framesmith_dynamo.values.tensors.tensor import TensorValue

REFUSED = register_break(
    "flex-attention-refused",
    what="a call of flex_attention that torch rejects, or accepts in eager mode only",
    why="torch's own function raises the error",
    hint="see the error that follows; where there is none, omit the named argument, such as "
    "`BACKEND` of kernel_options",
)

#: Options of torch's kernels that change the results, or the set of accepted calls.
MEANING: Final = frozenset({"BACKEND", "FORCE_USE_FLEX_ATTENTION", "OUTPUT_LOGSUMEXP", "OUTPUT_MAX"})
#: Functions without effect, and the substitute for the mask of a block mask that was sliced.
CHANGES_NOTHING: Final = flex._identity
HIDES_NOTHING: Final = flex.noop_mask
UNUSABLE: Final = getattr(flex, "_sliced_mask_mod_error", None)


def _named(tr: Tracer, function: Any, args: Args, kwargs: Kwargs) -> dict[str, Value]:
    """Return the arguments by name, with defaults; raises the program's TypeError where they do not fit."""
    signature = inspect.signature(function)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        refuse(tr, function, args, kwargs)
    return {
        name: given[name] if name in given else tr.constant(one.default) for name, one in signature.parameters.items()
    }


@handles(flex.flex_attention)
def flex_attention(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    _refuse_transforms(tr)
    given = _named(tr, flex.flex_attention, args, kwargs)
    query, key, value, block_mask = (given[name] for name in ("query", "key", "value", "block_mask"))
    tensors = [one.fake for one in _tensors(query, key, value)]
    why = _why_refused(tensors, given["enable_gqa"].bool_(tr)) or _why_options(tr, given["kernel_options"])
    if why is not None:
        raise GraphBreak(REFUSED, why)
    fitting = tr.constant(polyfill.fits)
    if not block_mask.is_none() and not tr.call(fitting, (block_mask, query, key), {}).bool_(tr):
        raise GraphBreak(REFUSED, "the block mask is of other sizes, or on another device")
    if block_mask.is_none() and tensors[0].shape[0] != tensors[1].shape[0]:
        raise GraphBreak(REFUSED, "batches differ")
    wants, aux = given["return_lse"].bool_(tr), given["return_aux"]
    sums = wants if aux.is_none() else aux.getattr_(tr, "lse").bool_(tr)
    largest = not aux.is_none() and aux.getattr_(tr, "max_scores").bool_(tr)
    if (wants and not aux.is_none()) or (largest and tensors[0].device.type != "cuda"):
        raise GraphBreak(REFUSED, "these results are not given together, or not on this device")
    mask_mod = tr.constant(None) if block_mask.is_none() else block_mask.getattr_(tr, "mask_mod")
    results = _attend(tr, tensors, (query, key, value), given["score_mod"], mask_mod, given["scale"]).unpack(tr)
    if aux.is_none():
        return TupleValue(results[:2]) if wants else results[0]
    none = tr.constant(None)
    kept = (results[1] if sums else none, results[2] if largest else none)
    return TupleValue([results[0], tr.call(tr.constant(flex.AuxOutput), kept, {})])


@handles(unstable.flex_attention)
def operator(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """torch's operator: its logarithms are to base 2."""
    _refuse_transforms(tr)
    given = _named(tr, unstable.flex_attention.__call__, args, kwargs)
    query, key, value = (given[name] for name in ("query", "key", "value"))
    tensors = [one.fake for one in _tensors(query, key, value)]
    why = _why_shapes(tensors)
    if why is not None or any(given[f"{one}_mod_other_buffers"].unpack(tr) for one in ("score", "mask")):
        raise GraphBreak(REFUSED, why or "captured tensors are given beside the functions")
    mask_mod = given["block_mask"].unpack(tr)[-1]
    results = _attend(tr, tensors, (query, key, value), given["score_mod"], mask_mod, given["scale"])
    return tr.call(tr.constant(polyfill.to_base_2), results.unpack(tr), {})


def _refuse_transforms(tr: Tracer) -> None:
    """Break in the body of a function transform: torch has no rule for the operator there."""
    if tr.facts.body.level:
        raise GraphBreak(REFUSED, "a function transform of torch is active")


def _tensors(*values: Value) -> list[TensorValue]:
    """Return the values, each of which has to be a tensor."""
    tensors = [one for one in values if isinstance(one, TensorValue)]
    if len(tensors) != len(values):
        raise GraphBreak(REFUSED, ", ".join(one.describe() for one in values))
    return tensors


def _why_refused(tensors: list[torch.Tensor], shares: bool) -> str | None:
    """Return why torch's function would reject such tensors, or None; `shares`: heads may share keys."""
    why = _why_shapes(tensors)
    if why is not None:
        return why
    query, key, _ = tensors
    if query.device.type not in ("cpu", "cuda"):
        return "another device"
    if query.device.type == "cpu" and any(one.requires_grad for one in tensors):
        return "gradients of queries, keys or values on the CPU"
    return "heads differ, without enable_gqa" if not shares and query.shape[1] != key.shape[1] else None


def _why_shapes(tensors: list[torch.Tensor]) -> str | None:
    query, key, value = tensors
    if any(one.dim() != 4 or one.device != query.device or not one.is_floating_point() for one in tensors):
        return "tensors of other than four dimensions, of integers, or on several devices"
    if any(one.dtype != query.dtype for one in tensors) and any(one.requires_grad for one in tensors):
        return "gradients of mixed types"
    batch, heads, queries, depth = query.shape
    others, shared, keys, same = key.shape
    if depth != same or value.shape[:3] != key.shape[:3]:
        return "keys and values whose shapes do not match the queries, or each other"
    if 0 in (batch, heads, queries, keys, depth, value.shape[3]) or heads % shared or others not in (1, batch):
        return "no elements, or heads or batches that do not fit"
    return None


def _why_options(tr: Tracer, options: Value) -> str | None:
    if options.is_none():
        return None
    named = MEANING & set(options.as_plain())
    return f"kernel_options {', '.join(sorted(named))}" if named else None


def _function_of(value: Value) -> FunctionType | None:
    return value.function if isinstance(value, FunctionValue) else None


def _attend(
    tr: Tracer, fakes: list[torch.Tensor], given: tuple[Value, ...], score_mod: Value, mask_mod: Value, scale: Value
) -> Value:
    """Return the three results of `attend`, the first with eager mode's layout."""
    none = tr.constant(None)
    known = _function_of(mask_mod)
    if known is not None and known is UNUSABLE:
        raise GraphBreak(REFUSED, "the mask function of a block mask that was sliced")
    query = fakes[0]
    if scale.is_none():
        scale = tr.constant(float(query.shape[3]) ** -0.5)
    device = query.device.type
    casts = torch.is_autocast_enabled(device)
    dtype = tr.constant(torch.get_autocast_dtype(device)) if casts else none
    mods = (
        none if _function_of(score_mod) is CHANGES_NOTHING else score_mod,
        none if known is HIDES_NOTHING else mask_mod,
    )
    function = polyfill.attend_cast if casts else polyfill.attend
    arguments = (*given, *mods, scale, *((dtype, tr.constant(device)) if casts else ()))
    output, *rest = tr.call(tr.constant(function), arguments, {}).unpack(tr)
    assert isinstance(output, TensorValue)
    return TupleValue([_in_query_layout(tr, output, query), *rest])


def _in_query_layout(tr: Tracer, output: TensorValue, query: torch.Tensor) -> Value:
    """Return the output with its dimensions in memory as those of the queries, the elements of a head contiguous."""
    steps = query.stride()

    def outermost_first(one: int, other: int) -> int:
        if steps[one] == steps[other]:
            return one - other
        return -1 if steps[one] > steps[other] else 1

    # Of dimensions with equal strides the last is the innermost, and a head's elements always are.
    order = [*sorted(range(3), key=functools.cmp_to_key(outermost_first)), 3]
    if order == [0, 1, 2, 3]:
        return output
    sizes, back = output.fake.shape, [order.index(dim) for dim in range(4)]
    constants = tr.constant(tuple(order)), tr.constant(tuple(back)), tr.constant(any(n == 1 for n in sizes))
    return tr.call(tr.constant(polyfill.ordered_as), (output, *constants), {})


@handles(polyfill.elementwise)
def _elementwise(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    mod, score, indices = args
    wholes = [*([] if score.is_none() else [score]), *indices.unpack(tr)]
    return elementwise(tr, mod, _tensors(*wholes))


@handles(flex.create_mask)
def create_mask(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    given = _named(tr, flex.create_mask, args, kwargs)
    if given["device"].is_none():
        raise GraphBreak(REFUSED, "a mask for the accelerator that is there")
    kind = tr.call(tr.constant(flex._get_mod_type), (given["mod_fn"],), {}).as_constant()
    of_scores = tr.constant(kind is flex._ModificationType.SCORE_MOD)
    return tr.call(tr.constant(polyfill.create_mask), (*given.values(), of_scores), {})


for _theirs, _ours in (
    (flex._ordered_to_dense, polyfill.ordered_to_dense),
    (flex._dense_to_ordered, polyfill.dense_to_ordered),
):

    def _handler(tr: Tracer, args: Args, kwargs: Kwargs, theirs: Any = _theirs, ours: Any = _ours) -> Value:
        return tr.call(tr.constant(ours), (), _named(tr, theirs, args, kwargs))

    handles(_theirs)(_handler)
