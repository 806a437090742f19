"""The operators that tracing decomposes, and their rules.

Note [Decomposed or kept]: core ATen (`native_layer_norm`, `_softmax`, `gelu`, `addmm`, `convolution`,
`_scaled_dot_product_*`, ...) is not decomposed, so that a backend can choose between a library call and a kernel of its
own. The table marks as `decomposed` operators outside of core ATen that fuse well in parts: derivatives of pointwise
and row-wise operators, compound pointwise operators, simple losses; a backend names those that it `lowers` itself. Not
decomposed either, though outside of core ATen, are operators that one library call does better: derivatives of
convolution, attention, batch and group norm, pooling, embedding, `nll_loss`. Composite operators always are. So are
foreach operators (`_foreach_add`), whose parts fuse with other operations on the same tensor, unless a backend lowers
one to a single call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from framesmith_aten.operators import applied_to_each, arguments, is_composite, is_mutable, row, run_parts
from framesmith_aten.symbolic import has_unbacked_length
from framesmith_aten.torch_adapter import unstable
from framesmith_aten.tracing import recurrent
from framesmith_guards.torch_adapter import OpOverload, OpOverloadPacket, aten

Lowers = Callable[[OpOverload], bool]
"""Whether the backend lowers an operator itself, although it could be decomposed."""

Rule = Callable[..., Any]
"""Computes an operator by simpler ones, or returns NotImplemented: then the operator itself is recorded."""


def lowers_nothing(op: OpOverload) -> bool:
    """The choice of a backend that declares none: decompose whatever can be."""
    return False


def decomposition_of(op: Any, lowers: Lowers) -> Rule | None:
    """Return the rule that decomposes a call of the operator, or None."""
    if row(op).decomposed and not is_mutable(op):
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
        except ZeroDivisionError:  # the mean of no elements, which torch's kernels accept
            return NotImplemented

    return decomposed


def _parts(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    return run_parts(op, args, kwargs)


def _one_by_one(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Decompose a foreach operator into a call per tensor: list arguments item by item, the others as they are.

    Not decomposed where its counterpart takes no such arguments.
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
    """Return for each argument of `op` its keyword in a call of the counterpart, None for a positional one."""
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
    """Whether the argument has the type of a list argument's items, or that of another, and is a keyword if that is."""
    kind = str(given.type)
    kind = kind.removeprefix("List[").removesuffix("]") if kind.startswith("List[") else kind
    return str(argument.type) == kind and argument.kwarg_only >= given.kwarg_only


def binary_cross_entropy(
    input: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, reduction: int = 1
) -> torch.Tensor:
    """torch's decomposition, after the operator's check of probabilities (its message is lost)."""
    aten._assert_async.default(((input >= 0) & (input <= 1)).all())
    loss: torch.Tensor = unstable.decomposition_table[aten.binary_cross_entropy.default](
        input, target, weight, reduction
    )
    return loss


def log_sigmoid_backward(gradient: torch.Tensor, input: torch.Tensor, saved: torch.Tensor) -> torch.Tensor:
    """torch's decomposition, with nothing saved for unbacked lengths, since it asks whether that has elements."""
    if has_unbacked_length(saved):
        saved = saved.new_empty(0)
    result: torch.Tensor = unstable.decomposition_table[aten.log_sigmoid_backward.default](gradient, input, saved)
    return result


def eigenvalues(input: torch.Tensor) -> Any:
    """The operator itself, after the check that `linalg_eigvals` makes: without it, the process ends on a NaN."""
    aten._assert_async.default(input.isfinite().all())
    return NotImplemented


def rrelu(input: torch.Tensor, noise: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The operator on contiguous memory, whose result is contiguous where the functional variant's would not be."""
    if input.is_contiguous():
        return NotImplemented
    return aten.rrelu_with_noise_functional.default(input.contiguous(), noise, *args, **kwargs)


def zeros(size: Any, **options: Any) -> torch.Tensor:
    """Zeros in memory, as kernels read them; fakes of tensors without memory end in an endless recursion of torch's."""
    made: torch.Tensor = aten.zeros.default(size, **options)
    return made


#: Rules that restore checks, layouts or workspaces that a call below autograd lacks.
CORRECTED: dict[Any, Rule] = {
    aten._efficientzerotensor.default: zeros,
    aten._linalg_eigvals.default: eigenvalues,
    aten.rrelu_with_noise_functional.default: rrelu,
    recurrent.LAYER: recurrent.recorded,
    recurrent.DERIVATIVE: recurrent.derived,
}


def norms(tensors: Sequence[torch.Tensor], ord: Any = 2, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    """The norm of each tensor, whose operator has another name and other arguments."""
    return [aten.linalg_vector_norm.default(tensor, ord, dtype=dtype) for tensor in tensors]


def scaled_sum(
    factor: Rule, x: torch.Tensor, number: torch.Tensor, first: torch.Tensor, second: torch.Tensor
) -> torch.Tensor:
    """`x + factor(number * first, second)` for tensors of one floating dtype, in float32 at least; rounded once."""
    wide = torch.promote_types(x.dtype, torch.float32)
    added: torch.Tensor = factor(number.to(wide) * first.to(wide), second.to(wide))
    return (x.to(wide) + added).to(x.dtype)


def with_packed_numbers(
    factor: Rule, many: Sequence[torch.Tensor], first: Sequence[torch.Tensor], second: Sequence[torch.Tensor],
    scalars: torch.Tensor,
) -> Any:  # fmt: skip
    """`scaled_sum` for each of many tensors, with the numbers in one tensor."""
    tensors = (*many, *first, *second)
    if len({tensor.dtype for tensor in tensors}) != 1 or not all(map(torch.is_floating_point, (*tensors, scalars))):
        return NotImplemented
    each = zip(many, scalars.unbind(), first, second, strict=True)
    return [scaled_sum(factor, x, number, a, b) for x, number, a, b in each]


#: Our own rules, in place of torch's.
OWN: dict[Any, Rule] = {
    aten.binary_cross_entropy.default: binary_cross_entropy,
    aten.log_sigmoid_backward.default: log_sigmoid_backward,
    aten._foreach_norm.Scalar: norms,
    aten._foreach_addcdiv.Tensor: functools.partial(with_packed_numbers, aten.div),
    aten._foreach_addcmul.Tensor: functools.partial(with_packed_numbers, aten.mul),
}
