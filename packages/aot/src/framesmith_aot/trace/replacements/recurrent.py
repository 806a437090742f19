"""GRUs and plain RNNs of many steps: a loop over time is one call of the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from framesmith_aot.trace import functional
from framesmith_aten.layouts import is_contiguous
from framesmith_aten.symbolic import hint_or_guess, is_symbolic
from framesmith_aten.tracing import recurrent_loops
from framesmith_guards.needs import of_torch

Tensors = Sequence[torch.Tensor]

#: Up to this number of steps a graph holds each: fusion within a step outweighs its calls.
FEW_STEPS = 8


def whole(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `torch.gru`, `rnn_tanh` or `rnn_relu` by loops, or by `call`, that function, where `why_not` says so."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs) if why_not(args, kwargs) is not None else _layers(name, *args)

    return run


def why_not(args: Sequence[Any], kwargs: Any) -> str | None:
    """Return why the call's steps are traced one by one, or None."""
    if kwargs or len(args) != 9 or not isinstance(args[2], (list, tuple)):
        return "its sequences are packed"
    input, hx, params, biases, layers, *_, both, batch_first = args
    tensors = (input, hx, *params)
    if torch.is_autocast_enabled("cpu") or any(one.dtype != input.dtype or not one.is_cpu for one in tensors):
        return "the dtypes differ, or a tensor is not on the CPU"
    if not input.is_floating_point() or input.dim() != 3 or hx.dim() != 3 or not functional.is_functional(input):
        return "its operands have other shapes"
    if len(params) != layers * (1 + both) * (4 if biases else 2):
        return "it has another number of weights"
    steps = input.shape[1 if batch_first else 0]
    if any(not is_symbolic(length) and length == 0 for length in (*input.shape, *hx.shape)):
        return "it has no elements"
    return None if is_symbolic(steps) or hint_or_guess(steps) > FEW_STEPS else "it has few steps"


def _layers(
    name: str,
    input: torch.Tensor,
    hx: torch.Tensor,
    params: Tensors,
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    both: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    each, ways = (4 if biases else 2), (2 if both else 1)
    given = input.transpose(0, 1) if batch_first else input
    states = hx.unbind(0)
    last: list[torch.Tensor] = []
    for at in range(layers):
        found = []
        for way in range(ways):
            number = at * ways + way
            weights = params[number * each : (number + 1) * each]
            # Eager mode runs the steps of two directions one by one, without a copy of the input.
            as_given = both or is_contiguous(given)
            out: torch.Tensor = _layer(name, way == 1, as_given, given, states[number], *weights)
            last.append(out[-1])
            found.append(out.flip(0) if way else out)
        given = torch.cat(found, 2) if both else found[0]
        if dropout and train and at < layers - 1:
            given = torch.dropout(given, dropout, True)
    state = torch.stack(last)
    return (
        given.transpose_(0, 1) if batch_first else given
    ), state  # in place, as in eager mode, so that it is no view


class _Layer(torch.autograd.Function):
    """One layer in one direction: returns all states, time first; from the last step if it goes `back`.

    `as_given`: whether eager mode saves the input itself, where weights require gradients, and no copy of it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        name: str,
        back: bool,
        as_given: bool,
        given: torch.Tensor,
        state: torch.Tensor,
        *weights: torch.Tensor,
    ) -> torch.Tensor:
        input = given.flip(0) if back else given
        operands = input, state.unsqueeze(0), [*weights], len(weights) > 2
        out: torch.Tensor
        if name == "gru" and any(ctx.needs_input_grad):
            out, _, *ctx.gates = recurrent_loops.gru_with_gates()(*operands)
        else:
            out, ctx.gates = recurrent_loops.layer(name)(*operands, 1, 0.0, False, False, False)[0], []
        saved = [state, weights[1]]
        if weights[0].requires_grad and as_given:
            saved.append(given)
        if given.requires_grad:
            saved.append(weights[0])
        ctx.save_for_backward(*saved)
        ctx.name, ctx.back, ctx.biased = name, back, len(weights) > 2
        ctx.live = given if as_given else functional.snapshot(given), state, weights[:2]
        ctx.met = [functional.snapshot(one) for one in (input, state, out)]
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Return the gradients, with the gates of the forward pass.

        The saved operands show what `.data` changed in them, as in eager mode.
        """
        ctx.saved_tensors  # noqa: B018  raises if one was changed and counted
        live, live_state, live_weights = ctx.live
        input, state, out = ctx.met
        before = torch.cat((state.unsqueeze(0), out[:-1]))
        if ctx.name == "gru":
            inner, own, first = _gru(grads[0], before, ctx.gates[0], live_weights[1])
        else:
            slope = 1 - out * out if ctx.name == "rnn_tanh" else (out > 0).to(out.dtype)
            inner, first = recurrent_loops.rnn_backward()(grads[0], slope, live_weights[1])
            own = inner
        flat, own_flat = inner.flatten(0, 1), own.flatten(0, 1)
        multiplied = live.flip(0) if ctx.back else live
        before = torch.cat((live_state.unsqueeze(0), out[:-1]))
        found = [flat.t() @ multiplied.flatten(0, 1), own_flat.t() @ before.flatten(0, 1)]
        if ctx.biased:
            found += [flat.sum(0), own_flat.sum(0)]
        of_input = (flat @ live_weights[0]).view(input.shape)
        return None, None, None, of_input.flip(0) if ctx.back else of_input, first, *found


_layer: Callable[..., torch.Tensor] = _Layer.apply


def _gru(
    grad: torch.Tensor, before: torch.Tensor, gates: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    reset, update, new, own = gates.chunk(4, 2)
    factors = (
        update,
        (1 - update) * (1 - new * new),
        (before - new) * (update * (1 - update)),
        reset,
        own * (reset * (1 - reset)),
    )
    made: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = recurrent_loops.gru_backward()(grad, *factors, weight)
    return made


#: The replaced functions of torch.
REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    call: whole(name, call)
    for name in recurrent_loops.LAYERS
    for call in (of_torch(f"torch.{name}"), of_torch(f"torch._VF.{name}"))
}
