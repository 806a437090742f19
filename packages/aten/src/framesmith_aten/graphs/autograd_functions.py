"""`torch.autograd.Function` as a node of a torch-level graph: a call whose first arguments are graphs of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from framesmith_aten.graphs.transforms import function_of
from framesmith_guards.contexts import ambient

#: The attribute of an autograd node of `applied` with the tensors that attributes of the user's `ctx` keep.
HELD_TENSORS = "held_tensors"

Body = Callable[..., tuple[Any, ...]]


def applied(
    forward: Body,
    backward: Body,
    counts: tuple[int, int, int],
    saved: Sequence[bool],
    written: Sequence[int],
    undifferentiated: Sequence[int],
    materialize: bool,
    once: bool,
    *operands: Any,
) -> tuple[torch.Tensor, ...]:
    """Return the tensors that a `torch.autograd.Function` gives, whose methods were captured as two graphs.

    `forward` maps the inputs and what it captures to its outputs and the values that it keeps for `backward`, which
    maps a gradient for each output, the kept values, and what it captures to a gradient or None for each input.
    `counts`: of the inputs, of the values that `forward` captures, of its outputs; `operands` are these inputs, these
    values, and those that `backward` captures. `saved`: of each kept value, whether `ctx.save_for_backward` keeps it
    (or an attribute of `ctx`). `written` and `undifferentiated` are the inputs of `ctx.mark_dirty` and the outputs of
    `ctx.mark_non_differentiable`, `materialize` is set by `ctx.set_materialize_grads`. `once`: a second derivative
    raises torch's error of `once_differentiable`.
    """
    inputs, captured, outputs = counts
    call = _Call(
        function_of(forward),
        function_of(backward),
        outputs,
        saved,
        written,
        undifferentiated,
        materialize,
        operands[inputs : inputs + captured],
        operands[inputs + captured :],
    )
    function: Any = _Once if once else _Applied
    results = function.apply(call, *operands[:inputs])
    return results if isinstance(results, tuple) else (results,)


@dataclass(frozen=True)
class _Call:
    """One call: its bodies, what is known of their results, and the values that each captures."""

    forward: Body
    backward: Body
    outputs: int
    saved: Sequence[bool]
    written: Sequence[int]
    undifferentiated: Sequence[int]
    materialize: bool
    captured: tuple[Any, ...]
    captured_backward: tuple[Any, ...]


class _Applied(torch.autograd.Function):
    """The function of all such nodes."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *inputs: Any) -> Any:
        with ambient.preserved():
            results = call.forward(*inputs, *call.captured)
        outputs, kept = results[: call.outputs], results[call.outputs :]
        ctx.call = call
        ctx.save_for_backward(*[value for value, saved in zip(kept, call.saved, strict=True) if saved])
        held = [value for value, saved in zip(kept, call.saved, strict=True) if not saved]
        setattr(ctx, HELD_TENSORS, held)
        if call.written:
            ctx.mark_dirty(*[inputs[at] for at in call.written])
        ctx.mark_non_differentiable(*[outputs[at] for at in call.undifferentiated])
        ctx.set_materialize_grads(call.materialize)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        call = ctx.call
        # Read where none was saved, they would raise at a second pass.
        tensors, attributes = iter(ctx.saved_tensors if any(call.saved) else ()), iter(getattr(ctx, HELD_TENSORS))
        kept = [next(tensors) if saved else next(attributes) for saved in call.saved]
        with ambient.preserved():
            return (None, *call.backward(*gradients, *kept, *call.captured_backward))


class _Once(_Applied):
    """One whose second derivative is refused."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _Applied.backward(ctx, *gradients)
