"""Recurrent layers on the CPU by machine code of our own: all steps of one layer in one direction are one call.

The operators take the inputs' part of the gates, [steps * batch, gates * hidden], and return all states, [steps, batch,
hidden]; the matmuls around them are the graph's (`rewrite.py`). See docs/design/kernels/0023-recurrent-layers.md.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import torch

from framesmith_aten.tracing import recurrent_loops
from framesmith_aten.tracing.recurrent import mark_of, register
from framesmith_backends.native_ops.base import EXTENT, THREADS, CodeCache, operator, processor, threads_for
from framesmith_backends.native_ops.recurrent.calls import Calls, Operand
from framesmith_backends.native_ops.recurrent.render import CELLS, JOB, Layer, packed_elements, render_layer, vectors_of
from framesmith_guards.torch_adapter import aten

#: Multiplications for each thread, at least.
GRAIN = 1 << 18
END = torch.iinfo(torch.int64).max

CODE: CodeCache[Layer] = CodeCache("recurrent", render_layer, {"fs_layer": (EXTENT, EXTENT, THREADS)})


def layer_of(kind: str, backward: bool, hidden: int) -> Layer:
    """The module for layers of so many units."""
    return Layer(kind, backward, vectors_of(kind, backward, hidden, processor()))


def run_layer(kind: str, backward: bool, steps: int, batch: int, hidden: int, weights: torch.Tensor,
              **given: torch.Tensor | int) -> None:  # fmt: skip
    """Run all steps; `given` are other words of the job.

    Raises:
        ValueError: A tensor is not of float32, not contiguous, or of fewer elements than the steps read or write.
    """
    layer, target = layer_of(kind, backward, hidden), processor()
    weights = weights.contiguous()
    _check(layer, steps, batch, hidden, {"weights": weights, **given})
    packed = weights.new_empty(packed_elements(layer, hidden, target))
    words = {"weights": weights, "packed": packed, **given}
    found = {name: one.data_ptr() if isinstance(one, torch.Tensor) else one for name, one in words.items()}
    job = JOB(steps=steps, batch=batch, hidden=hidden, **found)
    multiplied = steps * batch * hidden * hidden * CELLS[kind].gates
    blocks = -(-hidden // (target.float_lanes * layer.vectors))
    # Rounded down: each thread has a whole grain.
    CODE[layer].run(job, blocks, batch, threads_for(multiplied - GRAIN + 1, GRAIN, batch))


def _check(layer: Layer, steps: int, batch: int, hidden: int, words: Mapping[str, torch.Tensor | int]) -> None:
    """Check tensors whose addresses are all that machine code knows of them."""
    gates, row = CELLS[layer.kind].gates, batch * hidden
    sizes = {"weights": gates * hidden * hidden, "bias": gates * hidden, "saved": 4 * steps * row}
    sizes |= dict.fromkeys(("first", "first_cell", "carry", "cell_carry"), row)
    sizes |= dict.fromkeys(("gates", "grads", "state_grads"), steps * row * gates)
    if not layer.backward and not words.get("stride"):
        sizes["cells"] = row
    for name, one in words.items():
        if isinstance(one, torch.Tensor):
            least = sizes.get(name, steps * row)
            if one.dtype != torch.float32 or one.numel() < least or not one.is_contiguous():
                raise ValueError(
                    f"framesmith_backends: the {name} of a layer of {hidden} units, {batch} rows and {steps} steps "
                    f"are {least} float32 elements without gaps, got {list(one.shape)} of {one.dtype}"
                )


def _bias(gates: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return gates.new_zeros(gates.shape[-1]) if bias is None else bias.contiguous()


#: The random bytes that a workspace of the native LSTM begins with.
MARK = bytes.fromhex("9d1f6e83c2a45b70e81739fa0c64d2b5718e3fa96bd05c24f7a2816e0b93cd48") * 2
_MARK_NUMBERS = len(MARK) // 4


def lstm(
    gates: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor,
    cell: torch.Tensor,
    reverse: bool,
    keep: bool,
    input: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """All states, the last one, the last cell, and, if `keep`, the first byte of the workspace for `lstm_backward`.

    The workspace has, after the mark, gates and cells, and then the input, if given, and the first state.
    """
    (batch, hidden), wide = state.shape, gates.shape[1]
    steps = gates.shape[0] // batch
    gates = gates.contiguous()
    out = gates.new_empty((steps, batch, hidden))
    given: dict[str, torch.Tensor | int] = {"reverse": int(reverse), "first_cell": cell.contiguous()}
    if keep:
        operands = 0 if input is None else input.numel() + state.numel()
        whole = gates.new_empty(_MARK_NUMBERS + steps * batch * (wide + hidden) + operands)
        ctypes.memmove(whole.data_ptr(), MARK, len(MARK))
        saved = _Workspace(whole[_MARK_NUMBERS:], out)
        if input is not None:
            met, first = saved.operands(input.shape[2])
            met.copy_(input)
            first.copy_(state)
        cells = saved.cells
        given |= {"saved": saved.gates, "cells": cells, "stride": batch * hidden}
        workspace = whole.view(torch.uint8)[:1]
    else:
        cells = gates.new_empty((1, batch, hidden))
        given["cells"] = cells
        workspace = gates.new_empty(1, dtype=torch.uint8)
    run_layer(
        "lstm", False, steps, batch, hidden, weight,
        gates=gates, bias=_bias(gates, bias), first=state.contiguous(), out=out, **given,
    )  # fmt: skip
    last = 0 if reverse else -1
    return out, out[last].clone(), cells[last].clone() if keep else cells[0], workspace


class _Workspace:
    """The arrays of a workspace, for results like `output`."""

    def __init__(self, numbers: torch.Tensor, output: torch.Tensor) -> None:
        steps, batch, hidden = self._shape = output.shape
        room = output.numel()
        self.gates = numbers[: 4 * room]
        self.cells = numbers[4 * room : 5 * room].view(steps, batch, hidden)
        self._rest = numbers[5 * room :]

    def operands(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The input, whose last dimension has that size, and the first state of the forward pass."""
        steps, batch, hidden = self._shape
        room = steps * batch * size
        state = self._rest[room : room + batch * hidden]
        return self._rest[:room].view(steps, batch, size), state.view(batch, hidden)


def _opened(workspace: torch.Tensor, output: torch.Tensor) -> _Workspace | None:
    """The workspace of which the graph's tensor is the first byte; None for one of oneDNN."""
    if mark_of(workspace) != MARK:
        if workspace.untyped_storage().nbytes() <= 1:
            raise RuntimeError("framesmith_backends::lstm_backward: a part of its workspace came alone")
        return None
    numbers = torch.empty(0, dtype=torch.float32, device="cpu").set_(workspace.untyped_storage())
    return _Workspace(numbers[_MARK_NUMBERS:], output)


def lstm_backward(
    input: torch.Tensor,
    weights: list[torch.Tensor],
    state: torch.Tensor,
    cell: torch.Tensor,
    grad: torch.Tensor | None,
    grad_state: torch.Tensor | None,
    grad_cell: torch.Tensor | None,
    reverse: bool,
    output: torch.Tensor,
    workspace: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of the inputs' part of the gates, of the first state and of the first cell.

    `weights` are those of the input and of the state, and biases, if there are. Where oneDNN computed the layer, since
    the forward pass ran as it was traced, it is computed again.
    """
    steps, batch, hidden = output.shape
    saved = _opened(workspace, output)
    if saved is None:
        first, second = weights[2:] or (None, None)
        gates = torch.nn.functional.linear(input, weights[0], first).flatten(0, 1)
        again = lstm(gates, weights[1], second, state, cell, reverse, True, None)
        saved = _opened(again[3], output)
        assert saved is not None
    found = output.new_empty((steps * batch, 4 * hidden))
    carry, cell_carry = (
        output.new_zeros((batch, hidden)) if one is None else one.clone(memory_format=torch.contiguous_format)
        for one in (grad_state, grad_cell)
    )
    came = output.new_zeros(output.shape) if grad is None else grad.contiguous()
    run_layer(
        "lstm", True, steps, batch, hidden, weights[1], gates=saved.gates, cells=saved.cells,
        first_cell=cell.contiguous(), out=came, carry=carry, cell_carry=cell_carry, grads=found, reverse=int(reverse),
    )  # fmt: skip
    return found, carry, cell_carry


def lstm_operands(
    input: torch.Tensor, state: torch.Tensor, output: torch.Tensor, workspace: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of the input and the first state of the forward pass; of the present ones, if oneDNN has computed that."""
    saved = _opened(workspace, output)
    met, first = (input, state) if saved is None else saved.operands(input.shape[2])
    return met.clone(memory_format=torch.contiguous_format), first.clone(memory_format=torch.contiguous_format)


def lstm_gradients(w: Calls, given: Mapping[str, Any], wanted: Collection[object]) -> dict[int, Operand]:
    """The wanted gradients, by number, of the input, both weights, both biases, the first state and cell.

    `given` are the operands of `aten::mkldnn_rnn_layer_backward`, with a native workspace. Gates and cells are those of
    the workspace, and so are, from the last step to the first, the input and the first state; all else is read when the
    backward pass runs, as in eager mode.
    """
    input, output, state = given["input"], given["output"], given["hx_"]
    grads = [given[name] for name in ("grad_output", "grad_hy", "grad_cy")]
    weights = [given[f"weight{k}"] for k in range(1, 5 if given["has_biases"] else 3)]
    operands = (input, weights, state, given["cx_tmp"], *grads, given["reverse"], output, given["workspace"])
    loop = w.call(LSTM_BACKWARD, *operands)
    gates, first_state, first_cell = (w.part(loop, k) for k in range(3))
    found: dict[int, Operand] = {5: first_state, 6: first_cell}
    if 0 in wanted:
        sizes = [w.size(input, dim) for dim in range(3)]
        found[0] = w.call(aten.view.default, w.matmul(gates, given["weight1"]), sizes)
    if given["reverse"] and (1 in wanted or 2 in wanted):
        met = w.call(LSTM_OPERANDS, input, state, output, given["workspace"])
        input, state = w.part(met, 0), w.part(met, 1)
    if 1 in wanted:
        found[1] = w.matmul(w.transposed(gates), w.flat(input))
    if 2 in wanted:
        found[2] = w.matmul(w.transposed(gates), w.flat(_states_before(w, output, state, given["reverse"])))
    if 3 in wanted or 4 in wanted:
        found[3] = w.call(aten.sum.dim_IntList, gates, [0])
        found[4] = w.call(aten.clone.default, found[3])
    return found


def _states_before(w: Calls, output: Operand, state: Operand, reverse: bool) -> Operand:
    """Each step's state before it."""
    first = w.call(aten.unsqueeze.default, state, 0)
    others = w.call(aten.slice.Tensor, output, 0, 1, END) if reverse else w.call(aten.slice.Tensor, output, 0, 0, -1)
    return w.call(aten.cat.default, [others, first] if reverse else [first, others])


def _derivative(given: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    """The results of `aten::mkldnn_rnn_layer_backward` for a native workspace."""
    found = lstm_gradients(Calls(), given, range(7))
    return tuple(found[which] for which in range(7))


register(MARK, _derivative)


def states(
    kind: str, gates: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, first: torch.Tensor, keep: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All states of a GRU or a plain RNN, the last one as [1, batch, hidden], like `first`, and, if `keep`, gates."""
    gates = gates.contiguous()
    out, _, saved = _shapes_of_states(kind, gates, weight, bias, first, keep)
    steps, batch, hidden = out.shape
    run_layer(
        kind, False, steps, batch, hidden, weight, gates=gates, bias=_bias(gates, bias), first=first.contiguous(),
        out=out, **({"saved": saved} if keep else {}),
    )  # fmt: skip
    return out, out[-1:].clone(), saved


def states_backward(kind: str, names: tuple[str, ...], grad: torch.Tensor, *rest: torch.Tensor) -> Any:
    """The gradients of a loop of `framesmith_aten.tracing.recurrent_loops`, from factors and the weight.

    `names` are the job's words for those of gates; the last one is that of the first state.
    """
    *factors, weight = rest
    steps, batch, hidden = grad.shape
    found = {name: grad.new_empty((steps, batch, CELLS[kind].gates * hidden)) for name in names}
    carry = grad.new_zeros((batch, hidden))
    named = {f"factor{k}": one.contiguous() for k, one in enumerate(factors)}
    run_layer(kind, True, steps, batch, hidden, weight, out=grad.contiguous(), carry=carry, **found, **named)
    return *found.values(), carry


def _shapes_of_lstm(gates: torch.Tensor, weight: object, bias: object, state: torch.Tensor, *rest: object) -> Any:
    out = gates.new_empty((gates.shape[0] // state.shape[0], *state.shape))
    return out, gates.new_empty(state.shape), gates.new_empty(state.shape), gates.new_empty(1, dtype=torch.uint8)


def _shapes_of_lstm_backward(input: torch.Tensor, weights: list[torch.Tensor], state: torch.Tensor, *_: object) -> Any:
    found = input.new_empty((input.shape[0] * input.shape[1], weights[1].shape[0]))
    return found, input.new_empty(state.shape), input.new_empty(state.shape)


def _shapes_of_states(
    kind: str, gates: torch.Tensor, weight: object, bias: object, first: torch.Tensor, keep: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    _, batch, hidden = first.shape
    steps = gates.shape[0] // batch
    saved = gates.new_empty((steps, batch, 4 * hidden) if keep else 0)
    return gates.new_empty((steps, batch, hidden)), gates.new_empty(first.shape), saved


LSTM = operator(
    "lstm(Tensor gates, Tensor weight, Tensor? bias, Tensor state, Tensor cell, bool reverse, bool keep,"
    " Tensor? input) -> (Tensor, Tensor, Tensor, Tensor)",
    lstm, _shapes_of_lstm,
)  # fmt: skip
LSTM_BACKWARD = operator(
    "lstm_backward(Tensor input, Tensor[] weights, Tensor state, Tensor cell, Tensor? grad, Tensor? grad_state,"
    " Tensor? grad_cell, bool reverse, Tensor output, Tensor workspace) -> (Tensor, Tensor, Tensor)",
    lstm_backward, _shapes_of_lstm_backward,
)  # fmt: skip
LSTM_OPERANDS = operator(
    "lstm_operands(Tensor input, Tensor state, Tensor output, Tensor workspace) -> (Tensor, Tensor)",
    lstm_operands, lambda input, state, *_: (input.new_empty(input.shape), state.new_empty(state.shape)),
)  # fmt: skip
STATES = operator(
    "recurrent_states(str kind, Tensor gates, Tensor weight, Tensor? bias, Tensor first, bool keep)"
    " -> (Tensor, Tensor, Tensor)",
    states, _shapes_of_states,
)  # fmt: skip
GRU_BACKWARD = operator(
    "gru_backward(Tensor grad, Tensor update, Tensor new, Tensor gate, Tensor reset, Tensor by_reset, Tensor weight)"
    " -> (Tensor, Tensor, Tensor)",
    partial(states_backward, "gru", ("grads", "state_grads")), recurrent_loops.gru_backward(),
)  # fmt: skip
RNN_BACKWARD = operator(
    "rnn_backward(Tensor grad, Tensor slope, Tensor weight) -> (Tensor, Tensor)",
    partial(states_backward, "rnn_tanh", ("grads",)), recurrent_loops.rnn_backward(),
)  # fmt: skip
