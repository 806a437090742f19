"""Functional twins of custom operators that write to arguments: the graph stays functional, and is run in order.

torch's functionalisation knows twins of its own operators only. The twin of `lib::op(Tensor(a!) x, Tensor y) -> Tensor`
is `framesmith::lib_op_default_0(Tensor x, Tensor y) -> (Tensor, Tensor)`: it runs the operator on a copy of `x`, and
returns the operator's own results, except written arguments, followed by the copy. For lists and optional tensors each
tensor is returned, so that each number of them has a twin.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.layouts import may_overlap
from framesmith_aten.nested import tensors_in
from framesmith_aten.operators import arguments, is_custom, is_mutable, written, written_arguments
from framesmith_aten.torch_adapter import unstable
from framesmith_guards.torch_adapter import OpOverload, OpOverloadPacket

#: The namespace of the twins, which are custom operators themselves: nothing is known of what they run.
NAMESPACE = "framesmith"

_serial = itertools.count()


def writing_operator(target: Any) -> OpOverload | None:
    """Return the custom operator that a call of `target` runs, if it writes to arguments; else None."""
    op = getattr(target, "_opoverload", target)  # a `torch.library.custom_op`
    if isinstance(op, OpOverloadPacket) and op.overloads() == ["default"]:  # type: ignore[no-untyped-call]
        op = op.default
    return op if isinstance(op, OpOverload) and is_custom(op) and is_mutable(op) else None


def check(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise TraceUnsupported where the twin would differ from the operator, or a result is a view of an argument."""
    _returned_arguments(op)
    if not is_mutable(op):
        return
    changed = written(op, args, kwargs)
    tensors = [tensor for value in arguments(op, args, kwargs).values() for tensor in tensors_in(value)]
    recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    # Torch's kernel for autograd of a `torch.library.custom_op` only moves the version counters of what it writes to.
    plain = all(str(result.type) == "Tensor" for result in op._schema.returns)
    if recorded and not (plain and unstable.definition_of(op)):
        raise TraceUnsupported("custom-mutation", str(op), "its derivative, or the lack of one, would be lost")
    # Each overlaps itself, once.
    if any(sum(may_overlap(one, tensor) for tensor in tensors) > 1 for one in changed):
        raise TraceUnsupported("custom-mutation", str(op), "it writes to memory that another argument shows")


class _WithoutFormula(torch.autograd.Function):
    """Gives results the history that torch gives those of an operator without a formula for its derivative."""

    @staticmethod
    def forward(op: OpOverload, results: Sequence[torch.Tensor], *inputs: torch.Tensor) -> Any:
        return tuple(results)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.op = inputs[0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise RuntimeError(
            f"Trying to backward through {ctx.op} but no autograd formula was registered. "
            "Please use register_autograd to add one."
        )


def run_functionally(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the call's result, computed by the functional twin; its writes are copied. Raises TraceUnsupported."""
    check(op, args, kwargs)
    values, names = arguments(op, args, kwargs), written_arguments(op)
    changed = written(op, args, kwargs)
    counts = tuple(len([*tensors_in(values[name])]) for name in names)
    twin = functional_form(op, counts)
    with torch.no_grad():  # where gradients flow, autograd does not record the writes: see `check`
        results = [*_results(twin, twin(**values))]
        made = results[: len(results) - len(changed)]
        for tensor, new in zip(changed, results[len(made) :], strict=True):
            tensor.copy_(new)
    inputs = [tensor for tensor in tensors_in(tuple(values.values())) if tensor.requires_grad]
    if made and inputs and torch.is_grad_enabled():
        made = [*_WithoutFormula.apply(op, made, *inputs)]  # type: ignore[no-untyped-call]
    left = iter(made)
    return _plain([next(left) if same is None else values[same] for same in _returned_arguments(op)])


@functools.cache
def functional_form(op: OpOverload, counts: tuple[int, ...]) -> OpOverload:
    """Return the twin for calls that write to `counts` tensors of each written argument, defined on demand."""
    # Numbered, because an operator can be deleted and another of its name be defined.
    name = f"{op.namespace}_{op._opname}_{op._overloadname}_{next(_serial)}"
    _library().define(name + _schema(op, sum(counts)))  # type: ignore[no-untyped-call]
    run = _on_copies(op)
    _library().impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"{NAMESPACE}::{name}", run, lib=_library())
    made: OpOverload = getattr(getattr(torch.ops, NAMESPACE), name).default
    return made


@functools.cache
def _library() -> torch.library.Library:
    return torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


@functools.cache
def _returned_arguments(op: OpOverload) -> tuple[str | None, ...]:
    """Return for each result the written argument that it is, or None for a new tensor. Raises TraceUnsupported."""
    names = {
        frozenset(argument.alias_info.after_set): argument.name
        for argument in op._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write and str(argument.type) == "Tensor"
    }
    kinds = [frozenset(result.alias_info.after_set) if result.alias_info else None for result in op._schema.returns]
    if any(kind is not None and kind not in names for kind in kinds):
        raise TraceUnsupported("custom-mutation", str(op), "its result shows an argument's memory")
    return tuple(None if kind is None else names[kind] for kind in kinds)


def _schema(op: OpOverload, changed: int) -> str:
    """Return the schema without name and write annotations, with one more tensor result for each written one."""
    text = re.sub(r"\(\w+!\)", "", str(op._schema))
    parameters, _, returns = text[text.index("(") :].partition(" -> ")
    results = [result for result in returns.strip("()").split(", ") if result]
    own = [result for result, same in zip(results, _returned_arguments(op), strict=True) if same is None]
    return f"{parameters} -> ({', '.join([*own, *['Tensor'] * changed])})"


def _on_copies(op: OpOverload) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        values = arguments(op, args, kwargs)
        copies = {name: _copy(values[name]) for name in written_arguments(op)}
        out = op(**values | copies)
        returned = zip(_results(op, out), _returned_arguments(op), strict=True)
        return _plain([*(result for result, same in returned if same is None), *tensors_in(tuple(copies.values()))])

    return run


def _copy(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_copy(item) for item in value]
    return value.clone() if isinstance(value, torch.Tensor) else value


def _results(op: OpOverload, out: Any) -> tuple[Any, ...]:
    """Return the operator's results, one item for each result of its schema."""
    if not op._schema.returns:
        return ()
    return out if isinstance(out, tuple) else (out,)


def _plain(results: Sequence[Any]) -> Any:
    """Return results as an operator does: none, one, or a tuple."""
    return tuple(results) if len(results) > 1 else next(iter(results), None)
