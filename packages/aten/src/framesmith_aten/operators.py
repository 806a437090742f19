"""Facts about ATen operators: from schemas and tags, and from `table` where these are silent.

Functions take an `OpOverload`, and the call's arguments (real or fake) where the fact depends on them. Of operators of
users and other libraries (`is_custom`) only the schema is trusted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from framesmith_aten.fakes.rules import memory_reads
from framesmith_aten.nested import tensors_in
from framesmith_aten.symbolic import has_symbols, holds, is_symbolic
from framesmith_aten.table import TABLE, TRUSTED, Row
from framesmith_aten.torch_adapter import unstable
from framesmith_guards.torch_adapter import DispatchKey, OpOverload, OpOverloadPacket, aten

#: Views for autograd alone; the identity in a functional graph.
IDENTITY_VIEWS = frozenset({aten.detach.default, aten.alias.default})

_NOTHING_SPECIAL = Row()


def op_name(target: Any) -> str:
    """The operator's name without namespace and overload (`gelu` for `aten.gelu.default`)."""
    if isinstance(target, OpOverload):
        return target._opname
    return str(getattr(target, "__name__", target))


@functools.cache
def row(op: Any) -> Row:
    """Return the table's row of an operator of torch's own, in place or not; an empty one where it has none."""
    if not isinstance(op, OpOverload) or is_custom(op):
        return _NOTHING_SPECIAL
    name = op._opname
    return TABLE.get(name) or TABLE.get(name.removesuffix("_")) or _NOTHING_SPECIAL


def overloads(name: str) -> list[OpOverload]:
    """Return ATen's operators of a name; none where it has no such name."""
    packet = getattr(torch.ops.aten, name, None)
    found = packet.overloads() if isinstance(packet, OpOverloadPacket) else []  # type: ignore[no-untyped-call]
    return [getattr(packet, overload) for overload in found]


def is_custom(op: Any) -> bool:
    """Whether the operator is a user's or another library's."""
    return isinstance(op, OpOverload) and op.namespace not in TRUSTED


def is_contraction(op: Any) -> bool:
    """Whether the operator multiplies matrices, convolves or attends: torch counts floating-point operations of it."""
    return flop_count(op) is not None


def flop_count(op: Any) -> Callable[..., Any] | None:
    """Return torch's function that counts an operator's floating-point operations; None where it has none.

    It takes the call's arguments, tensors or their shapes, and the result as `out_val`.
    """
    return _flop_counts().get(op.overloadpacket) if isinstance(op, OpOverload) else None


@functools.cache
def _flop_counts() -> Mapping[Any, Callable[..., Any]]:
    """Return torch's table, imported when first needed: its module imports Triton where that is installed."""
    from torch.utils.flop_counter import flop_registry

    return flop_registry


def has_external_effect(op: Any) -> bool:
    """Whether the operator acts outside of tensors: it returns and writes nothing, or torch has its effect registered.

    The registration is `torch.library.CustomOpDef.register_effect`; other operators are taken at their schema's word.
    """
    if not is_custom(op):
        return False
    if not (op._schema.returns or is_mutable(op)):
        return True
    registered = getattr(unstable.custom_operators.find(op.name()), "effect", None)
    return getattr(registered, "effect", None) is not None


def is_view(op: Any) -> bool:
    """Whether the result shares (or may share) memory with the first argument.

    Chunks of `unsafe_split` do too, but torch treats them as separate tensors.
    """
    return isinstance(op, OpOverload) and (bool(op.is_view) or row(op).undeclared_view)


def asks_device(op: Any) -> bool:
    return op is torch.ops.prim.device.default


def asks_sizes(op: Any) -> bool:
    """Whether it asks for the sizes of a tensor, which functorch's wrappers of symbolic sizes do by this operator."""
    return op is torch.ops.aten.size.default


def is_random(op: Any) -> bool:
    """Whether the operator may advance a random generator."""
    return isinstance(op, OpOverload) and torch.Tag.nondeterministic_seeded in op.tags


def is_mutable(op: Any) -> bool:
    """Whether the schema declares a written argument."""
    return isinstance(op, OpOverload) and bool(op._schema.is_mutable)


def changes_metadata(op: Any) -> bool:
    """Whether the operator changes its first argument's shape, strides or storage, not its elements."""
    return isinstance(op, OpOverload) and torch.Tag.inplace_view in op.tags


def is_composite(op: Any) -> bool:
    """Whether torch computes the operator only by calling others: `run_parts` decomposes it.

    Autograd does so before any dispatch mode sees it; in inference mode nothing does.
    """
    return isinstance(op, OpOverload) and _has_composite_kernel(op)


@functools.cache
def _has_composite_kernel(op: OpOverload) -> bool:
    name: str = op.name()  # type: ignore[no-untyped-call]
    if not unstable.dispatch_has_kernel(name):  # an overload for TorchScript alone
        return False
    has_kernel = functools.partial(unstable.dispatch_has_kernel_for_dispatch_key, name)
    return has_kernel("CompositeImplicitAutograd") and not (has_kernel("CPU") or has_kernel("CUDA"))


def run_parts(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run a composite operator by its own kernel, so that modes see the operators that it calls.

    `op.decompose` may use a decomposition in Python with other calls: that of `lstm` has no dropout. Raises MemoryRead
    where the kernel reads memory, which fakes do not have.
    """
    memory_reads.check(op, args, kwargs)
    return op._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


#: Operators of a tensor and a number where foreach operators have the name of one of two tensors.
_BY_NUMBERS = {"maximum": "clamp_min", "minimum": "clamp_max"}


@functools.cache
def applied_to_each(op: Any) -> OpOverloadPacket | None:
    """Return the operator that a foreach operator (`_foreach_add`) applies to each tensor; None for others."""
    name = op_name(op).removeprefix("_foreach_")
    if name in _BY_NUMBERS and op._overloadname.startswith("Scalar"):
        name = _BY_NUMBERS[name]
    if not isinstance(op, OpOverload) or name == op_name(op) or is_mutable(op) or not hasattr(torch.ops.aten, name):
        return None
    return getattr(torch.ops.aten, name)  # type: ignore[no-any-return]


@functools.cache
def returns_tensors(op: Any) -> bool:
    return isinstance(op, OpOverload) and any("Tensor" in str(result.type) for result in op._schema.returns)


@functools.cache
def is_pointwise(op: Any) -> bool:
    """Whether each element of the result depends on one element of each argument."""
    return isinstance(op, OpOverload) and (torch.Tag.pointwise in op.tags or row(op).pointwise)


@functools.cache
def is_factory(op: Any) -> bool:
    """Whether the operator makes values out of nothing: cheaper to recompute than to save."""
    if not isinstance(op, OpOverload) or not returns_tensors(op) or is_random(op) or is_mutable(op) or is_custom(op):
        return False
    takes_tensors = any("Tensor" in str(argument.type) for argument in op._schema.arguments)
    return row(op).metadata or not takes_tensors


def is_effect(op: Any) -> bool:
    """Whether the operator may do more than return values: it is not dropped, merged or moved.

    It draws random numbers, writes to an argument, returns nothing, or is not torch's own.
    """
    if not isinstance(op, OpOverload):
        return True
    return is_random(op) or is_mutable(op) or row(op).statistics or is_custom(op) or not op._schema.returns


@functools.cache
def acts_on_no_operands(op: Any) -> bool:
    """Whether the operator has no operands and no result: on fakes it would act as on real data."""
    if not isinstance(op, OpOverload) or op._schema.returns:
        return False
    return not any(kind in str(argument.type) for argument in op._schema.arguments for kind in _OF_TENSORS)


#: Schema types of operands: tensors, and numbers that may be symbols.
_OF_TENSORS = ("Tensor", "int", "float", "number", "bool", "Scalar", "complex", "Sym")


@functools.cache
def is_check_by_device(op: OpOverload) -> bool:
    """Whether the operator only checks data, by a kernel for each device.

    An operator whose only kernel is for all devices would wait on the host for a device's result.
    """
    if op._schema.returns or is_mutable(op) or is_custom(op):
        return False
    name: str = op.name()  # type: ignore[no-untyped-call]
    return bool(unstable.dispatch_has_kernel_for_dispatch_key(name, "CPU"))


def gives_unknown_value(op: Any, out: Any) -> bool:
    """Whether `out`, the result on fakes, holds a value that depends on real data.

    A non-tensor result of an operator that is not torch's own: its rule for fakes had to invent one.
    """
    results = out if isinstance(out, (tuple, list)) else (out,)
    return is_custom(op) and any(not (result is None or isinstance(result, torch.Tensor)) for result in results)


@functools.cache
def reads_workspace(op: OpOverload) -> bool:
    """Whether the operator reads another one's workspace, whose size fakes do not have."""
    return any(argument.name == "workspace" for argument in op._schema.arguments)


def reads_sizes(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the call reads a number of elements from its tensors' data.

    Masks among indices do; a number of elements that is given need not be read.
    """
    given = arguments(op, args, kwargs)
    if "indices" in given and not is_custom(op):
        return any(map(is_mask, tensors_in(given["indices"])))
    return torch.Tag.dynamic_output_shape in op.tags and given.get("output_size") is None


def is_mask(index: torch.Tensor) -> bool:
    """Whether an index tensor selects elements by a mask, rather than by position."""
    return index.dtype in (torch.bool, torch.uint8)


def is_view_by_strides(op: OpOverload) -> bool:
    """Whether the result is a view of the operand's storage at any offset (`as_strided`)."""
    return is_view(op) and any(argument.name == "storage_offset" for argument in op._schema.arguments)


def shows_part(op: Any) -> bool:
    """Whether the results are views of elements of the first argument, each element once.

    Known for ATen's operators alone, which the table is about.
    """
    return is_view(op) and op.namespace == "aten" and not row(op).repeats


@functools.cache
def view_written(op: Any) -> OpOverload | None:
    """Return the view of a `*_scatter` operator's result that it writes (for `select_scatter`: `select`); None for
    others.

    The view takes the operator's arguments except the values written, the second argument.
    """
    name, found, rest = op_name(op).rpartition("_scatter")
    if not isinstance(op, OpOverload) or not found or rest:
        return None
    parameters = [one for one in _taken(op) if one[0] != "src"]
    return next((view for view in overloads(name) if _taken(view) == parameters), None)


def may_drop_ones(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the call drops dimensions of size 1, and one of these sizes is unknown."""
    if not row(op).drops_ones or not has_symbols(args[0]):
        return False
    tensor, dims = args[0], kwargs.get("dim", args[1] if len(args) > 1 else None)
    wanted = range(tensor.dim()) if dims is None else [dims] if isinstance(dims, int) else dims
    rank = tensor.dim()
    lengths = [tensor.shape[dim] for dim in wanted if -rank <= dim < rank]  # the operator refuses other dimensions
    return any(is_symbolic(length) and not (holds(length != 1) or holds(length == 1)) for length in lengths)


@functools.cache
def in_place_form(op: OpOverload) -> OpOverload | None:
    """Return the in-place variant of `op` (of `index_copy`: `index_copy_`), or None."""
    packet = None if is_mutable(op) else getattr(getattr(torch.ops, op.namespace), op_name(op) + "_", None)
    forms = [getattr(packet, overload) for overload in packet.overloads()] if packet is not None else []
    for form in forms:
        if _taken(form) == _taken(op) and written_arguments(form) == (op._schema.arguments[0].name,):
            return form  # type: ignore[no-any-return]
    return None


def _taken(op: OpOverload) -> list[tuple[str, str, bool]]:
    return [(argument.name, str(argument.type), bool(argument.kwarg_only)) for argument in op._schema.arguments]


def overwrites(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the call returns its first argument with elements replaced, independently of their old values.

    Its in-place variant may run twice.
    """
    values = arguments(op, args, kwargs) if row(op).overwrites else {}
    return bool(values) and not values.get("accumulate") and "reduce" not in values


def arguments(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the call's arguments by the schema's names, with defaults."""
    found: dict[str, Any] = {}
    for position, name in enumerate(_names(op)):
        if position < len(args):
            found[name] = args[position]
        elif name in kwargs:
            found[name] = kwargs[name]
        else:
            argument = op._schema.arguments[position]
            if argument.has_default_value():
                found[name] = argument.default_value
    return found


@functools.cache
def _names(op: OpOverload) -> tuple[str, ...]:
    return tuple(argument.name for argument in op._schema.arguments)


@functools.cache
def written_arguments(op: OpOverload) -> tuple[str, ...]:
    declared = op._schema.arguments
    return tuple(a.name for a in declared if a.alias_info is not None and a.alias_info.is_write)


def written_names(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the arguments that this call writes to, undeclared ones too, in the schema's order."""
    return (*written_arguments(op), *undeclared_writes(op, args, kwargs))


def written(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that this call writes to, undeclared ones too, in the schema's order."""
    names = written_names(op, args, kwargs)
    values = arguments(op, args, kwargs) if names else {}
    return [tensor for name in names for tensor in tensors_in(values.get(name))]


def undeclared_writes(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of arguments that this call writes to without a declaration in the schema."""
    return updated_statistics(op, args, kwargs) if row(op).statistics else ()


def updated_statistics(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of running statistics that normalisation in training updates without reading them."""
    values = arguments(op, args, kwargs)
    training = values.get("training", values.get("use_input_stats", row(op).statistics))
    return tuple(name for name in ("running_mean", "running_var") if training and values.get(name) is not None)
