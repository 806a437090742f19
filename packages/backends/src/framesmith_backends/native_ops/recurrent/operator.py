"""Recurrent layers on the CPU by machine code of our own: all steps of one layer in one direction are one call.

The operators take what inputs give to the gates, [steps * batch, gates * hidden], and give all states, [steps, batch,
hidden]; `rewrite.py` writes the matmuls around them. See docs/design/kernels/0023-recurrent-layers.md.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from framesmith_aten.tracing import recurrent_loops
from framesmith_aten.tracing.recurrent import mark_of, register
from framesmith_backends.launch.once import once
from framesmith_backends.native_ops.base import operator
from framesmith_backends.native_ops.recurrent.calls import Calls, Operand
from framesmith_backends.native_ops.recurrent.render import (
    CELLS,
    WORDS,
    Layer,
    packed_elements,
    render_layer,
    vectors_of,
)
from framesmith_guards.torch_adapter import aten

#: Multiplications for each thread, at least.
GRAIN = 1 << 18
END = torch.iinfo(torch.int64).max


class Code:
    """Machine code of a layer; it is called without the interpreter's lock."""

    def __init__(self, layer: Layer) -> None:
        from framesmith_backends.launch.llvm.engine import engine_of, machine

        self.layer, self.target = layer, machine().target
        self.engine = engine_of("recurrent", render_layer(layer, self.target))
        kinds = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)
        self.run: Callable[..., None] = ctypes.CFUNCTYPE(None, *kinds)(self.engine.get_function_address("fs_layer"))

    def __call__(self, steps: int, batch: int, hidden: int, weights: torch.Tensor, **given: torch.Tensor | int) -> None:
        """All steps; `given` are other words of `render.WORDS`.

        Raises:
            ValueError: A tensor is not of float32, not contiguous, or of fewer elements than the steps read or write.
        """
        weights = weights.contiguous()
        self._check(steps, batch, hidden, {"weights": weights, **given})
        packed = weights.new_empty(packed_elements(self.layer, hidden, self.target))
        words = {"steps": steps, "batch": batch, "hidden": hidden, "weights": weights, "packed": packed, **given}
        found = {name: one.data_ptr() if isinstance(one, torch.Tensor) else one for name, one in words.items()}
        job = _Words(*(found.get(name, 0) for name in WORDS))
        multiplied = steps * batch * hidden * hidden * CELLS[self.layer.kind].gates
        threads = max(1, min(torch.get_num_threads(), batch, multiplied // GRAIN))
        blocks = -(-hidden // (self.target.float_lanes * self.layer.vectors))
        self.run(job, blocks, batch, threads)

    def _check(self, steps: int, batch: int, hidden: int, words: Mapping[str, torch.Tensor | int]) -> None:
        """Machine code reads and writes by addresses alone."""
        gates, row = CELLS[self.layer.kind].gates, batch * hidden
        sizes = {"weights": gates * hidden * hidden, "bias": gates * hidden}
        sizes |= dict.fromkeys(("first", "first_cell", "carry", "cell_carry"), row)
        sizes |= dict.fromkeys(("gates", "found", "found_too"), steps * row * gates)
        sizes["kept"] = 4 * steps * row
        if not self.layer.backward and not words.get("apart"):
            sizes["cells"] = row
        for name, one in words.items():
            if isinstance(one, torch.Tensor):
                least = sizes.get(name, steps * row)
                if one.dtype != torch.float32 or one.numel() < least or not one.is_contiguous():
                    raise ValueError(
                        f"framesmith_backends: the {name} of a layer of {hidden} units, {batch} rows and {steps} steps "
                        f"are {least} float32 elements without gaps, got {list(one.shape)} of {one.dtype}"
                    )


_Words: Any = ctypes.c_int64 * len(WORDS)


@once
def _code(layer: Layer) -> Code:
    """Made where it is first asked for."""
    return Code(layer)


def code(kind: str, backward: bool, hidden: int) -> Code:
    """The code for layers of so many units."""
    from framesmith_backends.launch.llvm.engine import machine

    return _code(Layer(kind, backward, vectors_of(kind, backward, hidden, machine().target)))


def _bias(gates: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return gates.new_zeros(gates.shape[-1]) if bias is None else bias.contiguous()


#: What a workspace of ours begins with: random bytes.
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
    """All states, the last one, the last cell, and, if asked for, the first byte of all that `lstm_backward` needs.

    That is, behind the mark, what gates and cells were, and then the input, if given, and the first state.
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
        kept = _Kept(whole[_MARK_NUMBERS:], out)
        if input is not None:
            met, first = kept.operands(input.shape[2])
            met.copy_(input)
            first.copy_(state)
        cells = kept.cells
        given |= {"kept": kept.gates, "cells": cells, "apart": batch * hidden}
        workspace = whole.view(torch.uint8)[:1]
    else:
        cells = gates.new_empty((1, batch, hidden))
        given["cells"] = cells
        workspace = gates.new_empty(1, dtype=torch.uint8)
    code("lstm", False, hidden)(
        steps, batch, hidden, weight, gates=gates, bias=_bias(gates, bias), first=state.contiguous(), out=out, **given
    )
    last = 0 if reverse else -1
    return out, out[last].clone(), cells[last].clone() if keep else cells[0], workspace


class _Kept:
    """The parts of a workspace, for results like `output`."""

    def __init__(self, numbers: torch.Tensor, output: torch.Tensor) -> None:
        steps, batch, hidden = self._shape = output.shape
        room = output.numel()
        self.gates = numbers[: 4 * room]
        self.cells = numbers[4 * room : 5 * room].view(steps, batch, hidden)
        self._rest = numbers[5 * room :]

    def operands(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The input, whose last dimension has that size, and the first state, as they were in the forward pass."""
        steps, batch, hidden = self._shape
        room = steps * batch * size
        state = self._rest[room : room + batch * hidden]
        return self._rest[:room].view(steps, batch, size), state.view(batch, hidden)


def _kept(workspace: torch.Tensor, output: torch.Tensor) -> _Kept | None:
    """What lies behind the byte that the graph's tensor shows; None for a workspace of oneDNN's."""
    if mark_of(workspace) != MARK:
        if workspace.untyped_storage().nbytes() <= 1:
            raise RuntimeError("framesmith_backends::lstm_backward: a part of its workspace came alone")
        return None
    numbers = torch.empty(0, dtype=torch.float32, device="cpu").set_(workspace.untyped_storage())
    return _Kept(numbers[_MARK_NUMBERS:], output)


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
    """Gradients of what inputs give to the gates, of the first state and of the first cell.

    `weights` are those by the input and by the state, and biases, if there are. Where oneDNN computed the layer, since
    the forward pass was run as it was traced, it is computed again.
    """
    steps, batch, hidden = output.shape
    kept = _kept(workspace, output)
    if kept is None:
        first, second = weights[2:] or (None, None)
        gates = torch.nn.functional.linear(input, weights[0], first).flatten(0, 1)
        again = lstm(gates, weights[1], second, state, cell, reverse, True, None)
        kept = _kept(again[3], output)
        assert kept is not None
    found = output.new_empty((steps * batch, 4 * hidden))
    carry, cell_carry = (
        output.new_zeros((batch, hidden)) if one is None else one.clone(memory_format=torch.contiguous_format)
        for one in (grad_state, grad_cell)
    )
    came = output.new_zeros(output.shape) if grad is None else grad.contiguous()
    code("lstm", True, hidden)(
        steps, batch, hidden, weights[1], gates=kept.gates, cells=kept.cells, first_cell=cell.contiguous(),
        out=came, carry=carry, cell_carry=cell_carry, found=found, reverse=int(reverse),
    )  # fmt: skip
    return found, carry, cell_carry


def lstm_operands(
    input: torch.Tensor, state: torch.Tensor, output: torch.Tensor, workspace: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The input and the first state as they were in the forward pass; as they are, if oneDNN has computed that."""
    kept = _kept(workspace, output)
    met, first = (input, state) if kept is None else kept.operands(input.shape[2])
    return met.clone(memory_format=torch.contiguous_format), first.clone(memory_format=torch.contiguous_format)


def lstm_gradients(w: Calls, given: Mapping[str, Any], wanted: Collection[object]) -> dict[int, Operand]:
    """What is wanted of the gradients of the input, both weights, both biases, the first state and cell.

    `given` are the operands of `aten::mkldnn_rnn_layer_backward`, with a workspace of ours. What eager mode reads of
    them when the backward pass runs is read here: all but gates and cells, and, of what goes from the last step to the
    first, the input and the first state.
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
        found[1] = w.matmul(w.turned(gates), w.flat(input))
    if 2 in wanted:
        found[2] = w.matmul(w.turned(gates), w.flat(_states_before(w, output, state, given["reverse"])))
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
    """All that `aten::mkldnn_rnn_layer_backward` gives, of a workspace of ours."""
    found = lstm_gradients(Calls(), given, range(7))
    return tuple(found[which] for which in range(7))


register(MARK, _derivative)


def states(
    kind: str, gates: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, first: torch.Tensor, keep: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All states of a GRU or a plain RNN, the last one, as `first` is: [1, batch, hidden]; and, if asked for, gates."""
    _, batch, hidden = first.shape
    steps = gates.shape[0] // batch
    gates = gates.contiguous()
    out = gates.new_empty((steps, batch, hidden))
    kept = gates.new_empty((steps, batch, 4 * hidden) if keep else 0)
    code(kind, False, hidden)(
        steps, batch, hidden, weight, gates=gates, bias=_bias(gates, bias), first=first.contiguous(), out=out,
        **({"kept": kept} if keep else {}),
    )  # fmt: skip
    return out, out[-1:].clone(), kept


def gru_backward(grad: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What `framesmith_aten.tracing.recurrent_loops.gru_backward` gives, of its factors and the weight."""
    *factors, weight = rest
    steps, batch, hidden = grad.shape
    of_inputs, of_states = (grad.new_empty((steps, batch, 3 * hidden)) for _ in range(2))
    carry = grad.new_zeros((batch, hidden))
    named = {f"factor{k}": one.contiguous() for k, one in enumerate(factors)}
    code("gru", True, hidden)(
        steps, batch, hidden, weight, out=grad.contiguous(), carry=carry, found=of_inputs, found_too=of_states, **named
    )
    return of_inputs, of_states, carry


def rnn_backward(grad: torch.Tensor, slope: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What `framesmith_aten.tracing.recurrent_loops.rnn_backward` gives; activations differ in the slope alone."""
    steps, batch, hidden = grad.shape
    found, carry = grad.new_empty((steps, batch, hidden)), grad.new_zeros((batch, hidden))
    code("rnn_tanh", True, hidden)(
        steps, batch, hidden, weight, out=grad.contiguous(), factor0=slope.contiguous(), carry=carry, found=found
    )
    return found, carry


def _shape_of_lstm(
    gates: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, state: torch.Tensor, *rest: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    batch, hidden = state.shape
    out = gates.new_empty((gates.shape[0] // batch, batch, hidden))
    return out, gates.new_empty(state.shape), gates.new_empty(state.shape), gates.new_empty(1, dtype=torch.uint8)


def _shape_of_lstm_backward(
    input: torch.Tensor, weights: list[torch.Tensor], state: torch.Tensor, *rest: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    steps, batch, _ = input.shape
    found = input.new_empty((steps * batch, weights[1].shape[0]))
    return found, input.new_empty(state.shape), input.new_empty(state.shape)


def _shape_of_operands(
    input: torch.Tensor, state: torch.Tensor, output: torch.Tensor, workspace: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return input.new_empty(input.shape), state.new_empty(state.shape)


def _shape_of_states(
    kind: str, gates: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, first: torch.Tensor, keep: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    _, batch, hidden = first.shape
    steps = gates.shape[0] // batch
    kept = gates.new_empty((steps, batch, 4 * hidden) if keep else 0)
    return gates.new_empty((steps, batch, hidden)), gates.new_empty(first.shape), kept


LSTM = operator(
    "lstm(Tensor gates, Tensor weight, Tensor? bias, Tensor state, Tensor cell, bool reverse, bool keep,"
    " Tensor? input) -> (Tensor, Tensor, Tensor, Tensor)",
    lstm, _shape_of_lstm,
)  # fmt: skip
LSTM_BACKWARD = operator(
    "lstm_backward(Tensor input, Tensor[] weights, Tensor state, Tensor cell, Tensor? grad, Tensor? grad_state,"
    " Tensor? grad_cell, bool reverse, Tensor output, Tensor workspace) -> (Tensor, Tensor, Tensor)",
    lstm_backward, _shape_of_lstm_backward,
)  # fmt: skip
LSTM_OPERANDS = operator(
    "lstm_operands(Tensor input, Tensor state, Tensor output, Tensor workspace) -> (Tensor, Tensor)",
    lstm_operands, _shape_of_operands,
)  # fmt: skip
STATES = operator(
    "recurrent_states(str kind, Tensor gates, Tensor weight, Tensor? bias, Tensor first, bool keep)"
    " -> (Tensor, Tensor, Tensor)",
    states, _shape_of_states,
)  # fmt: skip
GRU_BACKWARD = operator(
    "gru_backward(Tensor grad, Tensor update, Tensor new, Tensor gate, Tensor reset, Tensor by_reset, Tensor weight)"
    " -> (Tensor, Tensor, Tensor)",
    gru_backward, recurrent_loops.gru_backward(),
)  # fmt: skip
RNN_BACKWARD = operator(
    "rnn_backward(Tensor grad, Tensor slope, Tensor weight) -> (Tensor, Tensor)", rnn_backward,
    recurrent_loops.rnn_backward(),
)  # fmt: skip
