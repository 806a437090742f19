"""The native recurrent layers beside eager mode in float64."""

from __future__ import annotations

import ctypes
import math
import mmap
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from case_selection.sweeps import examples
from graphs.tracing import trace
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from framesmith_aten.tracing import recurrent as lstm_layers
from framesmith_aten.tracing import recurrent_loops
from framesmith_backends import CpuBackend
from framesmith_backends.launch.llvm import engine as native
from framesmith_backends.native_ops import base
from framesmith_backends.native_ops.recurrent import operator as recurrent
from framesmith_backends.native_ops.recurrent import rewrite
from framesmith_backends.native_ops.recurrent.operator import LSTM, LSTM_BACKWARD, LSTM_OPERANDS, STATES
from framesmith_backends.native_ops.recurrent.render import CELLS
from framesmith_backends.native_ops.recurrent.rewrite import with_recurrent_layers
from framesmith_backends.target import Processor

LOOPS = ("gru", "rnn_tanh", "rnn_relu")
STEPS, ROWS, INPUTS, UNITS = (
    st.integers(1, 4), st.integers(1, 15), st.integers(1, 5), st.sampled_from([1, 3, 7, 8, 9, 15, 16, 17, 31, 40, 70])
)  # fmt: skip


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(recurrent, "GRAIN", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def layer_of(kind: str, inputs: int, hidden: int) -> nn.RNNBase:
    """A layer in float64."""
    made = {"lstm": nn.LSTM, "gru": nn.GRU}.get(kind)
    layer: nn.RNNBase = made(inputs, hidden) if made else nn.RNN(inputs, hidden, nonlinearity=kind[4:])
    return layer.double()


def weights_of(layer: nn.RNNBase) -> list[torch.Tensor]:
    return [one.detach().float() for one in layer.parameters()]


def by_inputs(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """The inputs' part of the gates."""
    return torch.addmm(weights[2], x.flatten(0, 1), weights[0].t())


def check(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Within some last digits of the largest element, or of 0.01 if all are less: they are sums of numbers near 1."""
    assert found.shape == wanted.shape
    size = max(wanted.abs().max().item(), 1e-2)
    torch.testing.assert_close(found.double(), wanted.double(), rtol=0, atol=3e-6 * size)


@settings(deadline=None, max_examples=examples(60))
@given(STEPS, ROWS, INPUTS, UNITS, st.booleans(), st.integers(0, 99))
def test_lstm(steps: int, rows: int, inputs: int, hidden: int, reverse: bool, seed: int) -> None:
    torch.manual_seed(seed)
    layer = layer_of("lstm", inputs, hidden)
    x = torch.randn(steps, rows, inputs).double()
    first, cell = (torch.randn(1, rows, hidden).double().requires_grad_() for _ in range(2))
    out, (last, last_cell) = layer(x.flip(0) if reverse else x, (first, cell))
    if reverse:
        out = out.flip(0)
    weights = weights_of(layer)
    gates = by_inputs(x.float(), weights)
    operands = gates, weights[1], weights[3], first[0].detach().float(), cell[0].detach().float(), reverse
    found = LSTM(*operands, True, None)
    for one, two in zip(found[:3], LSTM(*operands, False, None)[:3], strict=True):
        assert torch.equal(one, two)
    for one, two in zip(found[:3], (out, last[0], last_cell[0]), strict=True):
        check(one, two)

    grads = [torch.randn_like(one) for one in (out, last, last_cell)]
    learned = first, cell, layer.bias_ih_l0, layer.weight_hh_l0
    wanted = torch.autograd.grad((out, last, last_cell), learned, grads)
    given_grads = [grads[0].float(), grads[1][0].float(), grads[2][0].float()]
    of_gates, of_first, of_cell = LSTM_BACKWARD(
        x.float(), weights, operands[3], operands[4], *given_grads, reverse, found[0], found[3]
    )
    check(of_first, wanted[0][0])
    check(of_cell, wanted[1][0])
    check(of_gates.sum(0), wanted[2])
    before = [found[0][1:], operands[3][None]] if reverse else [operands[3][None], found[0][:-1]]
    check(of_gates.t() @ torch.cat(before).flatten(0, 1), wanted[3])


@settings(deadline=None, max_examples=examples(60))
@given(st.sampled_from(LOOPS), STEPS, ROWS, INPUTS, UNITS, st.integers(0, 99))
def test_states(kind: str, steps: int, rows: int, inputs: int, hidden: int, seed: int) -> None:
    torch.manual_seed(seed)
    layer = layer_of(kind, inputs, hidden)
    x, first = torch.randn(steps, rows, inputs).double(), torch.randn(1, rows, hidden).double()
    weights = weights_of(layer)
    found = STATES(kind, by_inputs(x.float(), weights), weights[1], weights[3], first.float(), False)
    for one, two in zip(found[:2], layer(x, first), strict=True):
        check(one, two.detach())
    assert found[1].untyped_storage().data_ptr() != found[0].untyped_storage().data_ptr()


@settings(deadline=None, max_examples=examples(40))
@given(STEPS, ROWS, INPUTS, UNITS, st.booleans(), st.integers(0, 99))
def test_gates_of_a_gru(steps: int, rows: int, inputs: int, hidden: int, biased: bool, seed: int) -> None:
    torch.manual_seed(seed)
    weights = [torch.randn(3 * hidden, inputs), torch.randn(3 * hidden, hidden)]
    weights += [torch.randn(3 * hidden), torch.randn(3 * hidden)] if biased else []
    weights = [one / 4 for one in weights]
    x, first = torch.randn(steps, rows, inputs), torch.randn(1, rows, hidden)
    gates = torch.nn.functional.linear(x, weights[0], weights[2] if biased else None).flatten(0, 1)
    found = STATES("gru", gates, weights[1], weights[3] if biased else None, first, True)
    for one, two in zip(found, recurrent_loops.gru_with_gates()(x, first, weights, biased), strict=True):
        check(one, two)


@settings(deadline=None, max_examples=examples(60))
@given(STEPS, ROWS, UNITS, st.integers(0, 99))
def test_backward_loops(steps: int, rows: int, hidden: int, seed: int) -> None:
    """Beside the loops of ATen's calls."""
    torch.manual_seed(seed)
    shape = (steps, rows, hidden)
    factors = [torch.randn(shape) for _ in range(6)]
    factors[2] = torch.randn(hidden, rows, steps).permute(2, 1, 0)  # laid out in some way
    weight = torch.randn(3 * hidden, hidden)
    for one, two in zip(
        recurrent.GRU_BACKWARD(*factors, weight), recurrent_loops.gru_backward()(*factors, weight), strict=True
    ):
        check(one, two)
    weight = torch.randn(hidden, hidden)
    for one, two in zip(
        recurrent.RNN_BACKWARD(*factors[:2], weight), recurrent_loops.rnn_backward()(*factors[:2], weight), strict=True
    ):
        check(one, two)


def test_threads_change_no_bit(threads: int) -> None:
    torch.manual_seed(0)
    steps, rows, hidden = 3, 13, 40
    for kind, cell in CELLS.items():
        gates, weight = torch.randn(steps * rows, cell.gates * hidden), torch.randn(cell.gates * hidden, hidden)
        first = torch.randn(1, rows, hidden)

        def run(rows: slice) -> torch.Tensor:
            mine = gates.view(steps, 13, -1)[:, rows].flatten(0, 1)
            state = first[:, rows].contiguous()
            if kind == "lstm":
                return LSTM(mine, weight, None, state[0], state[0], False, False, None)[0]
            return STATES(kind, mine, weight, None, state, False)[0]

        whole = run(slice(None))
        for row in range(rows):
            assert torch.equal(whole[:, row : row + 1], run(slice(row, row + 1)))


@pytest.mark.parametrize("kind", CELLS)
def test_numbers_that_are_not_finite(kind: str) -> None:
    """Infinities and NaNs of a row stay in it, and are eager's."""
    torch.manual_seed(0)
    layer = layer_of(kind, 3, 20)
    x = torch.randn(4, 6, 3).double()
    x[1, 2, 0], x[1, 3, 0], x[2, 4, 1] = math.nan, math.inf, -math.inf
    weights, first = weights_of(layer), torch.zeros(1, 6, 20)
    gates = by_inputs(x.float(), weights)
    if kind == "lstm":
        found = LSTM(gates, weights[1], weights[3], first[0], first[0], False, False, None)[0]
    else:
        found = STATES(kind, gates, weights[1], weights[3], first, False)[0]
    torch.testing.assert_close(found, layer.float()(x.float())[0].detach(), rtol=2e-5, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("hidden", [1, 16, 23, 64])
@pytest.mark.parametrize("kind", CELLS)
def test_nothing_else_is_read_or_written(kind: str, hidden: int) -> None:
    """Operands and results end at pages without access."""
    gates = CELLS[kind].gates
    rows, steps = 7, 2
    kept = []

    def placed(*shape: int) -> torch.Tensor:
        size, page = 4 * math.prod(shape), mmap.PAGESIZE
        whole = -(-size // page) * page
        pages = mmap.mmap(-1, whole + page)
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + whole), page, 0) == 0
        kept.append(pages)
        start = whole - size
        return torch.frombuffer(pages, dtype=torch.float32, count=math.prod(shape), offset=start).view(shape).fill_(1)

    weight, bias, state = placed(gates * hidden, hidden), placed(gates * hidden), placed(rows, hidden)
    given = {"bias": bias, "first": state, "first_cell": state, "gates": placed(steps, rows, gates * hidden)}
    results = {"out": placed(steps, rows, hidden), "cells": placed(steps, rows, hidden), "stride": rows * hidden}
    if gates > 1:
        results["saved"] = placed(steps, rows, 4 * hidden)
    recurrent.run_layer(kind, False, steps, rows, hidden, weight, **given, **results)
    back: dict[str, Any] = {f"factor{k}": placed(steps, rows, hidden) for k in range(5)}
    back |= {name: placed(steps, rows, gates * hidden) for name in ("grads", "state_grads", "gates")}
    back |= {name: placed(rows, hidden) for name in ("carry", "cell_carry", "first_cell")}
    back |= {"out": placed(steps, rows, hidden), "cells": placed(steps, rows, hidden)}
    recurrent.run_layer(kind, True, steps, rows, hidden, weight, **back)
    assert back["grads"].isfinite().all()


def test_a_workspace_that_came_alone_is_an_error() -> None:
    x, weight, state = torch.randn(6, 16), torch.randn(16, 4), torch.randn(2, 4)
    out, _, _, workspace = LSTM(x, weight, None, state, state, False, True, None)
    with pytest.raises(RuntimeError, match="came alone"):
        LSTM_BACKWARD(x, [weight, weight], state, state, out, None, None, False, out, workspace.clone())


def test_operands_saved_for_backward() -> None:
    input, weight, state = (
        torch.randn(3, 2, 5).transpose(0, 1).contiguous().transpose(0, 1),
        torch.randn(16, 4),
        torch.randn(2, 4),
    )
    out, _, _, workspace = LSTM(torch.randn(6, 16), weight, None, state, state, True, True, input)
    for one, two in zip(LSTM_OPERANDS(input, state, out, workspace), (input, state), strict=True):
        assert torch.equal(one, two)
        one.zero_()
    assert torch.equal(LSTM_OPERANDS(input, state, out, workspace)[0], input)


def test_gradients_that_are_none_are_zero() -> None:
    x, weight, state = torch.randn(6, 16), torch.randn(16, 4), torch.randn(2, 4)
    out, _, _, workspace = LSTM(x, weight, None, state, state, False, True, None)
    nothing = torch.zeros(2, 4)
    one = LSTM_BACKWARD(x, [weight, weight], state, state, None, None, None, False, out, workspace)
    two = LSTM_BACKWARD(
        x, [weight, weight], state, state, torch.zeros_like(out), nothing, nothing, False, out, workspace
    )
    for first, second in zip(one, two, strict=True):
        assert torch.equal(first, second)


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("name", "width"), [("x86-64-v3", 32), ("x86-64", 16)])
@pytest.mark.parametrize("kind", CELLS)
def test_narrower_processors(kind: str, name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    known = native.machine()
    if "x86" not in known.llvm.triple:
        pytest.skip("of another family of processors")
    torch.manual_seed(0)
    layer = layer_of(kind, 3, 21)
    x, weights = torch.randn(4, 5, 3), weights_of(layer)
    gates, first, grad = by_inputs(x, weights), torch.randn(1, 5, 21), torch.randn(4, 5, 21)
    factors = [torch.randn(4, 5, 21) for _ in range(5)]

    def run() -> list[torch.Tensor]:
        if kind == "lstm":
            out, last, cell, workspace = LSTM(gates, weights[1], weights[3], first[0], first[0], False, True, None)
            grads = LSTM_BACKWARD(x, weights, first[0], first[0], grad, None, None, False, out, workspace)
            return [out, last, cell, *grads]
        made = STATES(kind, gates, weights[1], weights[3], first, False)[:2]
        if kind == "gru":
            return [*made, *recurrent.GRU_BACKWARD(grad, *factors, weights[1])]
        return [*made, *recurrent.RNN_BACKWARD(grad, factors[0], weights[1])]

    wanted = run()
    other = native.Machine(Processor(name, "", width, width > 16), known.llvm, known.bytes_to_handle)
    monkeypatch.setattr(native, "machine", lambda: other)
    recurrent.CODE.clear()
    try:
        for one, two in zip(run(), wanted, strict=True):
            check(one, two)
    finally:
        recurrent.CODE.clear()


def test_threads_that_meet_new_code_make_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Counted(base.Code):
        def __init__(self, *given: Any) -> None:
            made.append(given)
            super().__init__(*given)

    recurrent.CODE.clear()
    monkeypatch.setattr(base, "Code", Counted)
    layer = recurrent.layer_of("rnn_relu", False, 8)
    threads = [threading.Thread(target=recurrent.CODE.__getitem__, args=(layer,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"gates": torch.randn(6, 15)}, "gates"), ({"gates": torch.randn(6, 16).double()}, "gates"),
        ({"weight": torch.randn(15, 4)}, "weights"), ({"bias": torch.randn(1)}, "bias"),
        ({"cell": torch.randn(1, 4)}, "first_cell"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_belong_together(change: dict[str, torch.Tensor], named: str) -> None:
    given = {"gates": torch.randn(6, 16), "weight": torch.randn(16, 4), "bias": torch.randn(16)}
    given |= {"state": torch.randn(2, 4), "cell": torch.randn(2, 4), **change}
    with pytest.raises(ValueError, match=f"the {named} of a layer of 4 units, 2 rows and 3 steps"):
        LSTM(*given.values(), False, False, None)


def rewritten(function: Any, *inputs: torch.Tensor) -> set[str]:
    """The operators of the graph."""
    gm = with_recurrent_layers(trace(function, inputs))
    return {str(node.target) for node in gm.graph.nodes if node.op == "call_function"}


def test_which_layers_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """LSTMs of few units or rows, where nothing is kept for gradients; of float32 alone."""

    def run(layer: nn.RNNBase, x: torch.Tensor) -> set[str]:
        weights = [one.detach() for one in layer.parameters()]
        states = torch.zeros(1, x.shape[1], layer.hidden_size, dtype=x.dtype)
        return rewritten(
            lambda x, h, *w: torch.lstm(x, (h, h), w, True, 1, 0.0, False, False, False)[0], x, states, *weights
        )

    ours, onednns = "framesmith_backends.lstm.default", "aten.mkldnn_rnn_layer.default"
    assert ours in run(nn.LSTM(3, 5), torch.randn(4, 20, 3))
    assert ours in run(nn.LSTM(3, 2 * rewrite.MOST_UNITS), torch.randn(4, rewrite.MOST_ROWS, 3))
    assert onednns in run(nn.LSTM(3, 2 * rewrite.MOST_UNITS), torch.randn(4, rewrite.MOST_ROWS + 1, 3))
    assert not {ours, onednns} & run(nn.LSTM(3, 5).double(), torch.randn(4, 20, 3).double())


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_workspaces_of_either_maker(reverse: bool, biased: bool) -> None:
    """One pass may run as it was traced, and the other not."""
    torch.manual_seed(0)
    steps, rows, inputs, hidden = 4, 3, 5, 6
    x, state, cell = torch.randn(steps, rows, inputs), torch.randn(rows, hidden), torch.randn(rows, hidden)
    weights = [torch.randn(4 * hidden, inputs), torch.randn(4 * hidden, hidden)]
    weights += [torch.randn(4 * hidden), torch.randn(4 * hidden)] if biased else [torch.zeros(1), torch.zeros(1)]
    about = (2, hidden, 1, biased)
    theirs = lstm_layers.layer()(x, *weights, state, cell, reverse, [], *about, False, False, True)
    used = weights if biased else weights[:2]
    gates = torch.nn.functional.linear(x, weights[0], weights[2] if biased else None).flatten(0, 1)
    ours = LSTM(gates, weights[1], weights[3] if biased else None, state, cell, reverse, True, x if reverse else None)
    grads = [torch.randn(steps, rows, hidden), torch.randn(rows, hidden), None]

    def derivative(made: Any) -> Any:
        out, last, last_cell, workspace = made
        return lstm_layers.derivative()(
            x, *weights, state, cell, out, last, last_cell, *grads, reverse, *about, True, False, [], False, workspace
        )

    wanted, found = derivative(theirs), derivative(ours)
    for k in (0, 1, 2, 5, 6, *((3, 4) if biased else ())):
        check(found[k], wanted[k])
    of_gates, of_state, of_cell = LSTM_BACKWARD(x, used, state, cell, *grads, reverse, theirs[0], theirs[3])
    check((of_gates @ weights[0]).view(x.shape), wanted[0])
    check(of_state, wanted[5])
    check(of_cell, wanted[6])
    for one, two in zip(LSTM_OPERANDS(x, state, theirs[0], theirs[3]), (x, state), strict=True):
        assert torch.equal(one, two)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh"])
@pytest.mark.parametrize("bias", [2, 3])
def test_biases_that_broadcast_are_eagers(kind: str, bias: int) -> None:
    layer = layer_of(kind, 3, 5).float()
    weights = [one.detach() for one in layer.parameters()]
    weights[bias] = torch.randn(1)
    x, state = torch.randn(20, 4, 3), torch.zeros(1, 4, 5)

    def run(x: torch.Tensor, state: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        given = (x, (state, state) if kind == "lstm" else state, weights, True, 1, 0.0, False, False, False)
        return getattr(torch, kind)(*given)[0]

    gm = trace(run, (x, state, *weights))
    found = CpuBackend().compile(gm, (x, state, *weights))([x, state, *weights])[0]
    torch.testing.assert_close(found, run(x, state, *weights))
