"""Layers of GRUs and plain RNNs, and the loops of their backward passes, as one call each.

Decomposed, a layer is some twenty calls per step, in a graph for one length. Forward, the loops are ATen's own.
Backward, a loop computes only what a step needs of the next: gradients of gates and states. The rest (gates, their
slopes, gradients of weights) is computed for all steps at once, outside of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from framesmith_aten.operators import arguments
from framesmith_aten.table import OWN_NAMESPACE
from framesmith_guards.torch_adapter import OpOverload, aten

#: Layers by the name of the torch function.
LAYERS: dict[str, OpOverload] = {name: getattr(aten, name).input for name in ("gru", "rnn_tanh", "rnn_relu")}


@functools.cache
def layer(name: str) -> OpOverload:
    """Return the operator of LAYERS for one layer in one direction, with the steps in dimension 0."""
    like = LAYERS[name]
    schema = str(like._schema)
    return _define(f"{name}{schema[schema.index('(') :]}", like, functools.partial(_fake_layer, like))


@functools.cache
def gru_with_gates() -> OpOverload:
    """Return a GRU's layer that also returns gates [steps, batch, 4 * hidden]: reset, update, new, and the states'
    share of new. `gru_backward` needs them as they were at the call.
    """
    text = "(Tensor input, Tensor hx, Tensor[] params, bool has_biases) -> (Tensor, Tensor, Tensor)"
    return _define(f"gru_with_gates{text}", _gru_with_gates, _fake_gru_with_gates)


@functools.cache
def gru_backward() -> OpOverload:
    """Return the operator of a GRU's backward loop: gradients of the inputs' gates, of the states' gates, of the first
    state.

    The factors take the gradient of a state to that of its new value (`new`) and update gate (`gate`), the former to
    the reset gate's (`by_reset`), and both to the previous state's, directly (`update`) and by the new value (`reset`).
    """
    text = "(Tensor grad, Tensor update, Tensor new, Tensor gate, Tensor reset, Tensor by_reset, Tensor weight)"
    return _define(f"gru_backward{text} -> (Tensor, Tensor, Tensor)", _gru_backward, _fake_gru_backward)


@functools.cache
def rnn_backward() -> OpOverload:
    """Return the operator of an RNN's backward loop: gradients of the preactivations, and of the first state."""
    text = "(Tensor grad, Tensor slope, Tensor weight)"
    return _define(f"rnn_backward{text} -> (Tensor, Tensor)", _rnn_backward, _fake_rnn_backward)


def _define(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> OpOverload:
    library, name = _library(), schema.partition("(")[0]
    library.define(schema)  # type: ignore[no-untyped-call]
    library.impl(name, run, "CPU")  # type: ignore[no-untyped-call]
    library.impl(name, fake, "Meta")  # type: ignore[no-untyped-call]
    made: OpOverload = getattr(getattr(torch.ops, OWN_NAMESPACE), name).default
    return made


@functools.cache
def _library() -> torch.library.Library:
    return torch.library.Library(OWN_NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


def _fake_layer(like: OpOverload, *args: Any) -> Any:
    values = arguments(like, args, {})
    input, hx = values["input"], values["hx"]
    return input.new_empty((*input.shape[:2], hx.shape[2])), hx.new_empty(hx.shape)


def _gru_with_gates(
    input: torch.Tensor, hx: torch.Tensor, params: list[torch.Tensor], has_biases: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    out, last = LAYERS["gru"](input, hx, params, has_biases, 1, 0.0, False, False, False)
    first, second = params[2:] or (None, None)
    reset, update, new = F.linear(input, params[0], first).chunk(3, 2)
    own_reset, own_update, own = F.linear(torch.cat((hx, out[:-1])), params[1], second).chunk(3, 2)
    reset, update = torch.sigmoid(reset + own_reset), torch.sigmoid(update + own_update)
    return out, last, torch.cat((reset, update, torch.tanh(new + reset * own), own), 2)


def _fake_gru_with_gates(
    input: torch.Tensor, hx: torch.Tensor, params: list[torch.Tensor], has_biases: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    (steps, batch, _), hidden = input.shape, hx.shape[2]
    out = input.new_empty((steps, batch, hidden))
    return out, hx.new_empty(hx.shape), input.new_empty((steps, batch, 4 * hidden))


def _gru_backward(
    grad: torch.Tensor,
    update: torch.Tensor,
    new: torch.Tensor,
    gate: torch.Tensor,
    reset: torch.Tensor,
    by_reset: torch.Tensor,
    weight: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    steps, batch, size = grad.shape
    of_inputs, of_states = (grad.new_empty((steps, batch, 3 * size)) for _ in range(2))
    parts = [part.unbind() for part in of_inputs.chunk(3, 2)]
    own = [part.unbind() for part in of_states.chunk(3, 2)]
    rows = [factor.unbind() for factor in (grad, update, new, gate, reset, by_reset)]
    states = of_states.unbind()
    carried = torch.zeros_like(rows[0][0])
    for at in reversed(range(steps)):
        came, update_at, new_at, gate_at, reset_at, by_reset_at = (row[at] for row in rows)
        carried = carried + came
        torch.mul(carried, gate_at, out=parts[1][at])
        torch.mul(carried, new_at, out=parts[2][at])
        torch.mul(parts[2][at], by_reset_at, out=parts[0][at])
        torch.mul(parts[2][at], reset_at, out=own[2][at])
        own[0][at].copy_(parts[0][at])
        own[1][at].copy_(parts[1][at])
        carried = torch.addmm(carried.mul_(update_at), states[at], weight)
    return of_inputs, of_states, carried


def _fake_gru_backward(grad: torch.Tensor, *rest: torch.Tensor) -> Any:
    steps, batch, size = grad.shape
    wide = (steps, batch, 3 * size)
    return grad.new_empty(wide), grad.new_empty(wide), grad.new_empty((batch, size))


def _rnn_backward(grad: torch.Tensor, slope: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = torch.empty_like(grad, memory_format=torch.contiguous_format)
    rows, came, slopes = found.unbind(), grad.unbind(), slope.unbind()
    carried = torch.zeros_like(came[0])
    for at in reversed(range(len(rows))):
        torch.mul(carried.add_(came[at]), slopes[at], out=rows[at])
        carried = torch.mm(rows[at], weight)
    return found, carried


def _fake_rnn_backward(grad: torch.Tensor, *rest: torch.Tensor) -> Any:
    return grad.new_empty(grad.shape), grad.new_empty(grad.shape[1:])
