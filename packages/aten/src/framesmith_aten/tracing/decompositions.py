"""Which operators are taken apart while tracing, and into what.

Note [Taken apart or whole]: core ATen (`native_layer_norm`, `_softmax`, `gelu`, `addmm`, `convolution`,
`_scaled_dot_product_*`, ...) stays whole, so that a backend can choose between a library call and a kernel of its own.
The table marks as `apart` what is not core and fuses well in pieces: derivatives of pointwise and row-wise operators,
compound pointwise operators, simple losses. Of these each backend says which it has a kernel for and wants whole
(`contract.Backend.lowers`). Lowers in spite of not being core stays what one library call does better: derivatives
of convolution, attention, batch and group norm, pooling, embedding, `nll_loss`. Composite operators are never whole.
Operators of many tensors at once (`_foreach_add`) are taken apart, each tensor's part fuses with what is done to that
tensor before and after; a backend for which one call over all of them is faster wants them whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from framesmith_aten.fakes.symbols import has_unbacked_length
from framesmith_aten.operators import applied_to_each, arguments, is_composite, is_mutable, row, run_parts
from framesmith_aten.torch_adapter import unstable
from framesmith_aten.tracing import recurrent
from framesmith_guards.torch_adapter import OpOverload, OpOverloadPacket, aten

Lowers = Callable[[OpOverload], bool]
"""Whether an operator that could be taken apart is to be left whole."""

Rule = Callable[..., Any]
"""Computes an operator out of simpler ones, or returns NotImplemented: then the operator is recorded as it is."""


def lowers_nothing(op: OpOverload) -> bool:
    """For a backend that declares nothing: everything that can be taken apart is."""
    return False


def decomposition_of(op: Any, lowers: Lowers) -> Rule | None:
    """The rule by which a call of the operator is taken apart, or None."""
    if row(op).apart and not is_mutable(op):
        return None if lowers(op) else OWN.get(op) or _of_torch(op)
    if is_composite(op):
        return functools.partial(_parts, op)
    if applied_to_each(op) is not None:
        return None if lowers(op) else OWN.get(op) or functools.partial(_one_by_one, op)
    return CORRECTED.get(op)


@functools.cache
def _of_torch(op: OpOverload) -> Rule | None:
    rule = unstable.decomposition_table.get(op)
    if rule is None:
        return None

    @functools.wraps(rule)
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        try:
            return rule(*args, **kwargs)
        except ZeroDivisionError:  # the mean of no elements, which torch's kernels know
            return NotImplemented

    return decomposed


def _parts(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    return run_parts(op, args, kwargs)


def _one_by_one(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """An operator of many tensors as calls for one each: what is given for each in turn, the rest as it is.

    Left whole is what its counterpart takes in no such form.
    """
    one, values = applied_to_each(op), arguments(op, args, kwargs)
    each = {name for name, value in values.items() if isinstance(value, (list, tuple))}
    counts = {len(values[name]) for name in each}
    form = None if one is None or len(counts) != 1 else _form_for(one, op)
    if one is None or form is None:
        return NotImplemented
    results = []
    for at in range(counts.pop()):
        given = [(value[at] if name in each else value, form[name]) for name, value in values.items()]
        results.append(one(*[v for v, name in given if name is None], **{name: v for v, name in given if name}))
    return results


def _form_for(one: OpOverloadPacket, op: OpOverload) -> dict[str, str | None] | None:
    """For each argument of `op` the name by which its counterpart takes it, None for one by position."""
    wanted = op._schema.arguments
    for overload in one.overloads():  # type: ignore[no-untyped-call]
        declared = getattr(one, overload)._schema.arguments
        rest = declared[len(wanted) :]
        if len(declared) < len(wanted) or not all(argument.has_default_value() for argument in rest):
            continue
        if all(_takes(argument, given) for argument, given in zip(declared, wanted, strict=False)):
            pairs = zip(wanted, declared, strict=False)
            return {given.name: argument.name if argument.kwarg_only else None for given, argument in pairs}
    return None


def _takes(argument: Any, given: Any) -> bool:
    """Whether the argument is of the type that is given for each tensor, and by name if that is."""
    kind = str(given.type).removeprefix("List[").removesuffix("]")
    return kind in ("Tensor", "number") and str(argument.type) == kind and argument.kwarg_only >= given.kwarg_only


def binary_cross_entropy(
    input: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, reduction: int = 1
) -> torch.Tensor:
    """torch's decomposition, with the check on probabilities that the operator itself makes (its message is lost)."""
    aten._assert_async.default(((input >= 0) & (input <= 1)).all())
    loss: torch.Tensor = unstable.decomposition_table[aten.binary_cross_entropy.default](
        input, target, weight, reduction
    )
    return loss


def log_sigmoid_backward(gradient: torch.Tensor, input: torch.Tensor, saved: torch.Tensor) -> torch.Tensor:
    """torch's decomposition; for unbacked lengths as if nothing were saved, since it asks whether that has elements."""
    if has_unbacked_length(saved):
        saved = saved.new_empty(0)
    result: torch.Tensor = unstable.decomposition_table[aten.log_sigmoid_backward.default](gradient, input, saved)
    return result


def eigenvalues(input: torch.Tensor) -> Any:
    """The operator itself, after the check that `linalg_eigvals` makes: without it, the process ends on a NaN."""
    aten._assert_async.default(input.isfinite().all())
    return NotImplemented


def rrelu(input: torch.Tensor, noise: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The operator on contiguous memory: its result is contiguous, that of its functional form would not be."""
    if input.is_contiguous():
        return NotImplemented
    return aten.rrelu_with_noise_functional.default(input.contiguous(), noise, *args, **kwargs)


def zeros(size: Any, **options: Any) -> torch.Tensor:
    """With memory, as kernels read it; fakes of those without end in an endless recursion of torch's."""
    made: torch.Tensor = aten.zeros.default(size, **options)
    return made


#: Rules that put back what the operator above did, or the form that is not functional does.
CORRECTED: dict[Any, Rule] = {
    aten._efficientzerotensor.default: zeros,
    aten._linalg_eigvals.default: eigenvalues,
    aten.rrelu_with_noise_functional.default: rrelu,
    recurrent.LAYER: recurrent.recorded,
    recurrent.DERIVATIVE: recurrent.derived,
}


def norms(tensors: Sequence[torch.Tensor], ord: Any = 2, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    """The norm of each tensor, whose operator has another name and other arguments than that of many."""
    return [aten.linalg_vector_norm.default(tensor, ord, dtype=dtype) for tensor in tensors]


def product_added(
    factor: Rule, x: torch.Tensor, number: torch.Tensor, first: torch.Tensor, second: torch.Tensor
) -> torch.Tensor:
    """`x + factor(number * first, second)` for tensors of one floating type, in float32 at least; rounded once."""
    wide = torch.promote_types(x.dtype, torch.float32)
    product: torch.Tensor = factor(number.to(wide) * first.to(wide), second.to(wide))
    return (x.to(wide) + product).to(x.dtype)


def with_packed_numbers(
    factor: Rule, many: Sequence[torch.Tensor], first: Sequence[torch.Tensor], second: Sequence[torch.Tensor],
    scalars: torch.Tensor,
) -> Any:  # fmt: skip
    """`product_added` for each of many tensors, with their numbers in one tensor."""
    tensors = (*many, *first, *second)
    if len({tensor.dtype for tensor in tensors}) != 1 or not all(map(torch.is_floating_point, (*tensors, scalars))):
        return NotImplemented
    each = zip(many, scalars.unbind(), first, second, strict=True)
    return [product_added(factor, x, number, a, b) for x, number, a, b in each]


#: Rules of our own, in place of torch's.
OWN: dict[Any, Rule] = {
    aten.binary_cross_entropy.default: binary_cross_entropy,
    aten.log_sigmoid_backward.default: log_sigmoid_backward,
    aten._foreach_norm.Scalar: norms,
    aten._foreach_addcdiv.Tensor: functools.partial(with_packed_numbers, aten.div),
    aten._foreach_addcmul.Tensor: functools.partial(with_packed_numbers, aten.mul),
}
