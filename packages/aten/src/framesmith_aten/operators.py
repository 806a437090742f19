"""What an ATen operator does: read off its schema and tags, and off `table` where they are silent.

Facts take an `OpOverload`; those that depend on the call take its arguments too (real or fake tensors). Of operators
of other libraries and users (`is_custom`) nothing is taken for granted but what their schemas say.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from framesmith_aten.fakes.rules import memory_reads
from framesmith_aten.symbolic import has_symbols, holds, is_symbolic
from framesmith_aten.table import TABLE, Row
from framesmith_aten.torch_adapter import unstable
from framesmith_guards.torch_adapter import DispatchKey, OpOverload, OpOverloadPacket, aten

#: The namespace of operators that this package adds to torch's own.
OWN_NAMESPACE = "framesmith_aten"

#: Namespaces whose operators do what their schemas, their tags and the table say.
TORCHS_OWN = frozenset({"aten", "prims", "prim", "mkldnn", "quantized", "framesmith_backends", OWN_NAMESPACE})

#: Views that exist for autograd only; in a functional graph they are the identity.
IDENTITY_VIEWS = frozenset({aten.detach.default, aten.alias.default})

_NOTHING_SPECIAL = Row()


def op_name(target: Any) -> str:
    """The operator's name without namespace and overload (`gelu` for `aten.gelu.default`)."""
    if isinstance(target, OpOverload):
        return target._opname
    return str(getattr(target, "__name__", target))


@functools.cache
def row(op: Any) -> Row:
    """The table's row of an operator of torch's own, in place or not; an empty one where it has none."""
    if not isinstance(op, OpOverload) or is_custom(op):
        return _NOTHING_SPECIAL
    name = op._opname
    return TABLE.get(name) or TABLE.get(name.removesuffix("_")) or _NOTHING_SPECIAL


def overloads(name: str) -> list[OpOverload]:
    """ATen's operators of a name; none where it has no such name."""
    packet = getattr(torch.ops.aten, name, None)
    found = packet.overloads() if isinstance(packet, OpOverloadPacket) else []  # type: ignore[no-untyped-call]
    return [getattr(packet, overload) for overload in found]


def is_custom(op: Any) -> bool:
    """Whether the operator is a user's or another library's."""
    return isinstance(op, OpOverload) and op.namespace not in TORCHS_OWN


def is_view(op: Any) -> bool:
    """Whether the operator's result shows (or may show) memory of its first argument.

    The pieces of `unsafe_split` do so too, but torch treats them as tensors of their own, and so does everybody.
    """
    return isinstance(op, OpOverload) and (bool(op.is_view) or row(op).undeclared_view)


def asks_device(op: Any) -> bool:
    """Whether this is torch's question for a tensor's device, asked where an exception ends the process."""
    return op is torch.ops.prim.device.default


def is_random(op: Any) -> bool:
    """Whether running the operator may advance a random generator."""
    return isinstance(op, OpOverload) and torch.Tag.nondeterministic_seeded in op.tags


def is_mutable(op: Any) -> bool:
    """Whether the operator's schema says that it writes to an argument."""
    return isinstance(op, OpOverload) and bool(op._schema.is_mutable)


def changes_metadata(op: Any) -> bool:
    """Whether the operator changes what its first argument is (shape, strides, storage), not its elements."""
    return isinstance(op, OpOverload) and torch.Tag.inplace_view in op.tags


def is_composite(op: Any) -> bool:
    """Whether torch only ever computes the operator by calling others: `run_parts` takes it apart.

    Autograd does so before any dispatch mode sees the operator; in inference mode nothing does.
    """
    return isinstance(op, OpOverload) and _has_composite_kernel(op)


@functools.cache
def _has_composite_kernel(op: OpOverload) -> bool:
    name: str = op.name()  # type: ignore[no-untyped-call]
    if not unstable.dispatch_has_kernel(name):  # an overload that TorchScript alone knows
        return False
    has_kernel = functools.partial(unstable.dispatch_has_kernel_for_dispatch_key, name)
    return has_kernel("CompositeImplicitAutograd") and not (has_kernel("CPU") or has_kernel("CUDA"))


def run_parts(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run a composite operator by its own kernel, so that modes see the operators that it calls.

    `op.decompose` may take a decomposition in Python instead, which need not call the same ones: that of `lstm` has
    no dropout. Raises MemoryRead where that kernel reads memory, which fakes do not have.
    """
    memory_reads.check(op, args, kwargs)
    return op._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


@functools.cache
def applied_to_each(op: Any) -> OpOverloadPacket | None:
    """The operator that one of many tensors at once (`_foreach_add`) applies to each of them; None for others."""
    name = op_name(op).removeprefix("_foreach_")
    if not isinstance(op, OpOverload) or name == op_name(op) or is_mutable(op) or not hasattr(torch.ops.aten, name):
        return None
    return getattr(torch.ops.aten, name)  # type: ignore[no-any-return]


@functools.cache
def returns_tensors(op: Any) -> bool:
    """Whether a tensor is among the results."""
    return isinstance(op, OpOverload) and any("Tensor" in str(result.type) for result in op._schema.returns)


@functools.cache
def is_pointwise(op: Any) -> bool:
    """Whether each element of the result depends on one element of each argument."""
    return isinstance(op, OpOverload) and (torch.Tag.pointwise in op.tags or row(op).pointwise)


@functools.cache
def is_factory(op: Any) -> bool:
    """Whether the operator makes values out of nothing: cheaper to make again than to keep."""
    if not isinstance(op, OpOverload) or not returns_tensors(op) or is_random(op) or is_mutable(op) or is_custom(op):
        return False
    takes_tensors = any("Tensor" in str(argument.type) for argument in op._schema.arguments)
    return row(op).metadata or not takes_tensors


def is_effect(op: Any) -> bool:
    """Whether running the operator may do more than return values: then it is neither dropped, merged nor moved.

    So it is where it draws random numbers, writes to an argument, returns nothing at all, or is not torch's own.
    """
    if not isinstance(op, OpOverload):
        return True
    return is_random(op) or is_mutable(op) or row(op).statistics or is_custom(op) or not op._schema.returns


@functools.cache
def acts_elsewhere(op: Any) -> bool:
    """Whether the operator takes neither tensors nor numbers and gives nothing: fakes of it would do what it does."""
    if not isinstance(op, OpOverload) or op._schema.returns:
        return False
    return not any(kind in str(argument.type) for argument in op._schema.arguments for kind in _OF_TENSORS)


#: In the types of schemas, what is computed with: tensors, and numbers that may be symbols.
_OF_TENSORS = ("Tensor", "int", "float", "number", "bool", "Scalar", "complex", "Sym")


@functools.cache
def is_check_by_device(op: OpOverload) -> bool:
    """Whether all that the operator does is a check of data which each device makes by a kernel of its own.

    One whose only kernel is for all devices asks on the host for what the device has computed.
    """
    if op._schema.returns or is_mutable(op) or is_custom(op):
        return False
    name: str = op.name()  # type: ignore[no-untyped-call]
    return bool(unstable.dispatch_has_kernel_for_dispatch_key(name, "CPU"))


def gives_unknown_value(op: Any, out: Any) -> bool:
    """Whether `out`, what the operator gave on fake tensors, holds a value that real tensors may change.

    That is one beside tensors from an operator that is not torch's own: its rule for fakes had to make one up.
    """
    results = out if isinstance(out, (tuple, list)) else (out,)
    return is_custom(op) and any(not (result is None or isinstance(result, torch.Tensor)) for result in results)


@functools.cache
def reads_workspace(op: OpOverload) -> bool:
    """Whether the operator reads memory as another one left it, of a size that fakes do not tell."""
    return any(argument.name == "workspace" for argument in op._schema.arguments)


def reads_sizes(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the call reads from its tensors' data how many elements it is about.

    Of places in a tensor that is what masks do; a number of elements that is given need not be read.
    """
    given = arguments(op, args, kwargs)
    if "indices" in given and not is_custom(op):
        return any(map(is_mask, tensors_in(given["indices"])))
    return torch.Tag.dynamic_output_shape in op.tags and given.get("output_size") is None


def is_mask(places: torch.Tensor) -> bool:
    """Whether what a tensor is indexed by chooses elements, rather than giving their places."""
    return places.dtype in (torch.bool, torch.uint8)


def is_view_by_strides(op: OpOverload) -> bool:
    """Whether the result is a view of the operand's storage, wherever in it the operand lies (`as_strided`)."""
    return is_view(op) and any(argument.name == "storage_offset" for argument in op._schema.arguments)


def shows_part(op: Any) -> bool:
    """Whether the results are views that show elements of the first argument, no others, and none more than once.

    Known of ATen's operators alone: the table is of these.
    """
    return is_view(op) and op.namespace == "aten" and not row(op).repeats


@functools.cache
def view_written(op: Any) -> OpOverload | None:
    """The view that shows what a `*_scatter` operator writes into its copy (of `select_scatter`: `select`).

    It takes what the operator takes but for the values written, the second argument. None for other operators.
    """
    name, found, rest = op_name(op).rpartition("_scatter")
    if not isinstance(op, OpOverload) or not found or rest:
        return None
    parameters = [one for one in _taken(op) if one[0] != "src"]
    return next((view for view in overloads(name) if _taken(view) == parameters), None)


def may_drop_ones(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether it leaves out dimensions of one element, and data tell of one whether it has one or several."""
    if not row(op).drops_ones or not has_symbols(args[0]):
        return False
    tensor, dims = args[0], kwargs.get("dim", args[1] if len(args) > 1 else None)
    wanted = range(tensor.dim()) if dims is None else [dims] if isinstance(dims, int) else dims
    rank = tensor.dim()
    lengths = [tensor.shape[dim] for dim in wanted if -rank <= dim < rank]  # the operator refuses others
    return any(is_symbolic(length) and not (holds(length != 1) or holds(length == 1)) for length in lengths)


@functools.cache
def in_place_form(op: OpOverload) -> OpOverload | None:
    """The operator that writes to its first argument what `op` gives (of `index_copy`: `index_copy_`), or None."""
    packet = None if is_mutable(op) else getattr(getattr(torch.ops, op.namespace), op_name(op) + "_", None)
    forms = [getattr(packet, overload) for overload in packet.overloads()] if packet is not None else []
    for form in forms:
        if _taken(form) == _taken(op) and written_arguments(form) == (op._schema.arguments[0].name,):
            return form  # type: ignore[no-any-return]
    return None


def _taken(op: OpOverload) -> list[tuple[str, str, bool]]:
    return [(argument.name, str(argument.type), bool(argument.kwarg_only)) for argument in op._schema.arguments]


def overwrites(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the call gives its first argument with some elements replaced by others that do not depend on these.

    Done in place, it may be done again.
    """
    values = arguments(op, args, kwargs) if row(op).overwrites else {}
    return bool(values) and not values.get("accumulate") and "reduce" not in values


def arguments(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The call's arguments by the schema's names, defaults filled in."""
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
    """The names of the arguments that the schema says are written to."""
    declared = op._schema.arguments
    return tuple(a.name for a in declared if a.alias_info is not None and a.alias_info.is_write)


def written(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors that this call writes to, undeclared ones too, in the schema's order."""
    names = (*written_arguments(op), *undeclared_writes(op, args, kwargs))
    values = arguments(op, args, kwargs) if names else {}
    return [tensor for name in names for tensor in tensors_in(values.get(name))]


def undeclared_writes(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the arguments that this call writes to although the schema does not say so."""
    return updated_statistics(op, args, kwargs) if row(op).statistics else ()


def updated_statistics(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the running statistics that normalisation in training updates, and does not use for its result."""
    values = arguments(op, args, kwargs)
    training = values.get("training", values.get("use_input_stats", row(op).statistics))
    return tuple(name for name in ("running_mean", "running_var") if training and values.get(name) is not None)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in an argument or a result: itself, or inside lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
