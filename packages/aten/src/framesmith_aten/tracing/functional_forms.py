"""Functional twins of custom operators that write to arguments: the graph stays functional, and is run in order.

torch's functionalisation knows twins of its own operators only. The twin of `lib::op(Tensor(a!) x, Tensor y) -> Tensor`
is `framesmith::lib_op_default_0(Tensor x, Tensor y) -> (Tensor, Tensor)`: it runs the operator on a copy of `x`, and
returns the copy behind the operator's own results.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.layouts import may_overlap
from framesmith_aten.operators import arguments, is_custom, is_mutable, tensors_in, written_arguments

NAMESPACE = "framesmith"

_serial = itertools.count()


def writing_operator(target: Any) -> OpOverload | None:
    """The custom operator that a call of `target` runs, if it writes to arguments; None for any other call."""
    op = getattr(target, "_opoverload", target)  # what `torch.library.custom_op` gives
    if isinstance(op, OpOverloadPacket) and op.overloads() == ["default"]:  # type: ignore[no-untyped-call]
        op = op.default
    return op if isinstance(op, OpOverload) and is_custom(op) and is_mutable(op) else None


def run_functionally(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the call gives, the functional twin having run; what it writes is copied. Raises TraceUnsupported."""
    values, twin = arguments(op, args, kwargs), functional_form(op)
    tensors = [(name, tensor) for name, value in values.items() for tensor in tensors_in(value)]
    for name in written_arguments(op):
        if any(other != name and may_overlap(values[name], tensor) for other, tensor in tensors):
            raise TraceUnsupported("custom-mutation", str(op), "it writes to memory that another argument shows")
    results = _as_tuple(twin(**values))
    own = len(op._schema.returns)
    for name, new in zip(written_arguments(op), results[own:], strict=True):
        values[name].copy_(new)
    return None if own == 0 else results[0] if own == 1 else results[:own]


@functools.cache
def functional_form(op: OpOverload) -> OpOverload:
    """The twin, made at the first call. Raises TraceUnsupported where an operator cannot have one."""
    written = written_arguments(op)
    for argument in op._schema.arguments:
        if argument.name in written and str(argument.type) != "Tensor":
            raise TraceUnsupported("custom-mutation", str(op), "it writes to an argument that is not one tensor")
    if any(result.alias_info is not None for result in op._schema.returns):
        raise TraceUnsupported("custom-mutation", str(op), "its result shows an argument's memory")
    # A number, because an operator can be deleted and another of its name be made.
    name = f"{op.namespace}_{op._opname}_{op._overloadname}_{next(_serial)}"
    _library().define(name + _schema(op))  # type: ignore[no-untyped-call]
    run = _on_copies(op, written)
    _library().impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"{NAMESPACE}::{name}", run, lib=_library())
    made: OpOverload = getattr(getattr(torch.ops, NAMESPACE), name).default
    return made


@functools.cache
def _library() -> torch.library.Library:
    return torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


def _schema(op: OpOverload) -> str:
    """The schema without its name, no argument being written to, a tensor more returned for each that was."""
    taken, _, given = str(op._schema).partition(" -> ")
    taken = re.sub(r"\(\w+!\)", "", taken[taken.index("(") :])
    own = [result for result in given.strip("()").split(", ") if result]
    return f"{taken} -> ({', '.join([*own, *('Tensor' for _ in written_arguments(op))])})"


def _on_copies(op: OpOverload, written: Sequence[str]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        values = arguments(op, args, kwargs)
        values |= {name: values[name].clone() for name in written}
        out = op(**values)
        own = _as_tuple(out) if op._schema.returns else ()
        results = (*own, *(values[name] for name in written))
        return results if len(results) > 1 else results[0]

    return run


def _as_tuple(out: Any) -> tuple[Any, ...]:
    return out if isinstance(out, tuple) else (out,)
