"""`torch.autograd.Function` as a node of a torch-level graph: a call whose first arguments are graphs of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

import torch
from torch.autograd.function import once_differentiable

from framesmith_aten.graphs.transforms import function_of
from framesmith_guards.contexts import ambient

#: The attribute of an autograd node of `applied` with the tensors that attributes of the user's `ctx` keep.
HELD_TENSORS = "held_tensors"

Body = Callable[..., tuple[Any, ...]]
#: The role of a body in a Function: a method, or `backward` for gradients of which these are tensors, the others None.
Role = str | tuple[bool, ...]
FORWARD: Final = "forward"
SETUP: Final = "setup_context"
JVP: Final = "jvp"
VMAP: Final = "vmap"


@dataclass(frozen=True)
class Settings:
    """Facts about an applied Function beside its bodies, as a tuple in its node.

    `roles`: of each body. `captured`: how many values each captures. `inputs`: how many tensors the Function takes.
    `outputs`: how many it gives. `saved`: of each value that is kept for `backward`, whether `ctx.save_for_backward`
    keeps it (or an attribute of `ctx`). `saved_for_forward`: the positions of those that `ctx.save_for_forward` keeps.
    `written` and `undifferentiated` are the inputs of `ctx.mark_dirty` and the outputs of
    `ctx.mark_non_differentiable`, `materialize` is set by `ctx.set_materialize_grads`. `once`: a second derivative
    raises torch's error of `once_differentiable`. `has_vmap` and `generate_vmap_rule`: whether the Function has a rule
    for vmap, or asks torch for one. `in_dims` and `out_dims`: the batch dimensions of the tensors that `vmap` was
    traced for, if it was, and of its results.
    """

    roles: tuple[Role, ...]
    captured: tuple[int, ...]
    inputs: int
    outputs: int
    saved: tuple[bool, ...]
    saved_for_forward: tuple[int, ...]
    written: tuple[int, ...]
    undifferentiated: tuple[int, ...]
    materialize: bool
    once: bool
    has_vmap: bool
    generate_vmap_rule: bool
    in_dims: tuple[int | None, ...]
    out_dims: tuple[int | None, ...]

    def as_tuple(self) -> tuple[Any, ...]:
        return tuple(vars(self).values())


def applied(bodies: Sequence[Body], settings: Sequence[Any], *operands: Any) -> tuple[torch.Tensor, ...]:
    """Return the tensors that a `torch.autograd.Function` gives, whose methods were captured as graphs.

    `settings`: those of `Settings`, in order. The operands are the Function's tensors, and what each body captures.
    The body of `forward` maps the tensors to the outputs and the values that it keeps for `backward`; with one of
    `setup_context` it gives the outputs alone, and the other maps tensors and outputs to the values. The body of
    `backward` maps a gradient for each output, and the kept values, to a gradient or None for each tensor; that of
    `jvp` a tangent of each tensor, and the kept values, to one of each output; that of `vmap` the batches to the
    outputs.
    """
    known = Settings(*settings)
    left = iter(operands[known.inputs :])
    captured = [[next(left) for _ in range(count)] for count in known.captured]
    bound = {
        role: partial(_with, function_of(body), values)
        for role, body, values in zip(known.roles, bodies, captured, strict=True)
    }
    results = _function(known).apply(_Call(bound, known), *operands[: known.inputs])
    return results if isinstance(results, tuple) else (results,)


def _with(body: Body, captured: Sequence[Any], *values: Any) -> tuple[Any, ...]:
    """Return a body's results, in torch's modes of the call, which it may change."""
    with ambient.preserved():
        return body(*values, *captured)


@dataclass(frozen=True)
class _Call:
    """One call: its bodies, with what they capture, and what is known of them."""

    bodies: Mapping[Role, Body]
    known: Settings


def asks_absent_gradients(node: Any, results: int) -> bool:
    """Whether an autograd node of `applied` asks which gradients are absent, in a group of so many results.

    One with a single result does so where no gradient at all arrives, for which torch calls its `backward`, too.
    """
    call = getattr(node, "call", None)
    if not isinstance(call, _Call) or call.known.materialize:
        return False
    return results == 1 or sum(any(role) for role in call.bodies if isinstance(role, tuple)) > 1


def _function(known: Settings) -> Any:
    """Return the Function of a node."""
    if SETUP not in known.roles:
        return _once(_Applied) if known.once else _Applied
    of_vmap = _Ruled if known.has_vmap else _Generating if known.generate_vmap_rule else _Separate
    return _once(of_vmap) if known.once else of_vmap


@cache
def _once(function: Any) -> Any:
    """Return the Function whose second derivative is refused."""
    return type("Once", (function,), {"backward": staticmethod(once_differentiable(function.backward))})


class _Applied(torch.autograd.Function):
    """The function of all nodes whose `forward` has the context."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *inputs: Any) -> Any:
        results = call.bodies[FORWARD](*inputs)
        outputs, kept = results[: call.known.outputs], results[call.known.outputs :]
        _note(ctx, call, inputs, outputs, kept)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        call: _Call = ctx.call
        body = call.bodies.get(tuple(one is not None for one in gradients))
        if body is None:
            raise NotImplementedError("the backward of this torch.autograd.Function was not captured")
        return None, *body(*gradients, *_kept(ctx, call.known.saved))


def _note(ctx: Any, call: _Call, inputs: Sequence[Any], outputs: Sequence[Any], kept: Sequence[Any]) -> None:
    """Set up a context as the Function's own methods did."""
    known = call.known
    ctx.call = call
    ctx.save_for_backward(*[value for value, saved in zip(kept, known.saved, strict=True) if saved])
    if known.saved_for_forward:
        ctx.save_for_forward(*[kept[at] for at in known.saved_for_forward])
    setattr(ctx, HELD_TENSORS, [value for value, saved in zip(kept, known.saved, strict=True) if not saved])
    if known.written:
        ctx.mark_dirty(*[inputs[at] for at in known.written])
    ctx.mark_non_differentiable(*[outputs[at] for at in known.undifferentiated])
    ctx.set_materialize_grads(known.materialize)


def _kept(ctx: Any, saved: Sequence[bool]) -> list[Any]:
    """Return the values kept for `backward`."""
    # Read where none was saved, they would raise at a second pass.
    tensors, attributes = iter(ctx.saved_tensors if any(saved) else ()), iter(getattr(ctx, HELD_TENSORS))
    return [next(tensors) if one else next(attributes) for one in saved]


class _Separate(torch.autograd.Function):
    """The function of all nodes with a `setup_context`, as torch's function transforms want it."""

    @staticmethod
    def forward(call: _Call, *inputs: Any) -> Any:
        return call.bodies[FORWARD](*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        call, *tensors = inputs
        _note(ctx, call, tensors, output, call.bodies[SETUP](*tensors, *output))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _Applied.backward(ctx, *gradients)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        call: _Call = ctx.call
        if JVP not in call.bodies:
            raise NotImplementedError("the jvp of this torch.autograd.Function was not captured")
        return call.bodies[JVP](*tangents[1:], *_kept_for_jvp(ctx, call.known))


def _kept_for_jvp(ctx: Any, known: Settings) -> Iterator[Any]:
    """Yield the values kept for `jvp`: None for those that `save_for_backward` alone keeps, which it may not read."""
    forward = known.saved_for_forward
    tensors = dict(zip(forward, ctx.saved_tensors, strict=True)) if forward else {}
    attributes = iter(getattr(ctx, HELD_TENSORS))
    for at, saved in enumerate(known.saved):
        attribute = None if saved else next(attributes)
        yield tensors.get(at, attribute)


class _Generating(_Separate):
    """One whose rule for vmap torch derives."""

    generate_vmap_rule = True


class _Ruled(_Separate):
    """One with a rule for vmap, captured for batches with the dimensions of this call."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], call: _Call, *batches: Any) -> Any:
        if VMAP not in call.bodies or tuple(in_dims[1:]) != call.known.in_dims:
            raise NotImplementedError(
                f"a vmap rule was captured for {call.known.in_dims or None}, and is asked for {in_dims}"
            )
        return call.bodies[VMAP](*batches), call.known.out_dims
