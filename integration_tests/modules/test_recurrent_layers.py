"""Recurrent layers in training: eager's values, gradients, layouts and random numbers.

Each option meets two of the three kinds of layers; in long runs, `FRAMESMITH_LONG=1`, all.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import framesmith
from integration_tests.harness.sweeps import in_turn

STEPS = 11

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch first, no bias": {"batch_first": True, "bias": False},
    "bidirectional, dropout between layers": {"num_layers": 2, "bidirectional": True, "dropout": 0.5},
}


def trained(layer: nn.Module, run: Any, x: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Results and gradients of a step, and the state of the generator behind it."""
    layer.zero_grad(set_to_none=True)
    x = x.clone().requires_grad_()
    torch.manual_seed(1)
    output, states = run(x)
    results = [output, *(states if isinstance(states, tuple) else (states,))]
    sum(one.float().square().sum() for one in results).backward()
    return [*results, x.grad, *(weight.grad for weight in layer.parameters())], torch.get_rng_state()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "kind"), in_turn(OPTIONS, [nn.LSTM, nn.GRU, nn.RNN], each=2))
def test_training_is_eagers(name: str, kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    layer = kind(5, 6, **OPTIONS[name])
    x = torch.randn(3, STEPS, 5) if layer.batch_first else torch.randn(STEPS, 3, 5)
    wanted, after = trained(layer, layer, x)
    found, state = trained(layer, framesmith.compile(layer, strict=True), x)
    for one, two in zip(found, wanted, strict=True):
        assert one.stride() == two.stride()
        torch.testing.assert_close(one, two)
    assert torch.equal(after, state)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_frozen_weights_and_half_numbers(kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    layer = kind(5, 6).bfloat16()
    layer.weight_ih_l0.requires_grad_(False)
    x = torch.randn(STEPS, 3, 5).bfloat16()
    wanted, _ = trained(layer, layer, x)
    found, _ = trained(layer, framesmith.compile(layer, strict=True), x)
    for one, two in zip(found, wanted, strict=True):
        assert (one is None) is (two is None)
        if one is not None:  # eager rounds the gradients of weights at each step
            torch.testing.assert_close(one, two, rtol=0.05, atol=0.1)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_dynamic_lengths(kind: type[nn.RNNBase]) -> None:
    layer = kind(5, 6)
    compiled = framesmith.compile(layer, strict=True, dynamic=True)
    for steps in (STEPS, 3, STEPS + 20):
        x = torch.randn(steps, 3, 5)
        torch.testing.assert_close(trained(layer, compiled, x)[0], trained(layer, layer, x)[0])


def eager_casts(kind: type[torch.nn.Module]) -> bool:
    """Whether eager mode computes such a layer in bfloat16: oneDNN's LSTM fails without AVX-512."""
    try:
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            kind(3, 4)(torch.randn(1, 2, 3))
    except RuntimeError as error:
        assert "primitive descriptor" in str(error)
        return False
    return True


@pytest.mark.sampled(9)
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_dropout_and_types_where_lengths_change(kind: type[torch.nn.Module]) -> None:
    """Torch's rules for symbolic sizes leave out dropout between layers, and what autocast makes of a layer."""
    torch.manual_seed(0)
    layers = kind(3, 4, num_layers=2, dropout=0.9)
    dropping = framesmith.compile(lambda x: layers(x)[0], strict=True, dynamic=True)
    casting = framesmith.compile(lambda x: layers(x)[0], strict=True, dynamic=True)
    casts = eager_casts(kind)
    for length in (5, 7, 1):
        x = torch.randn(length, 2, 3)
        torch.manual_seed(1)
        expected, following = layers(x)[0], torch.rand(())
        torch.manual_seed(1)
        torch.testing.assert_close(dropping(x), expected)
        assert torch.equal(torch.rand(()), following)
        if not casts:
            continue
        with torch.autocast("cpu", torch.bfloat16):
            torch.manual_seed(1)
            expected = layers(x)[0]
            torch.manual_seed(1)
            found = casting(x)
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("both", [False, True], ids=["one way", "two ways"])
@pytest.mark.parametrize("changed", ["output", "last", "input", "state", "weights", "biases"])
@pytest.mark.parametrize("kind", ["gru", "rnn_tanh", "rnn_relu"])
def test_what_data_changes_shows_where_eager_keeps_it(kind: str, changed: str, both: bool) -> None:
    """`.data` changes what the matmuls of the backward pass read, and nothing that the forward pass computed."""
    framesmith.reset()
    layer = getattr(torch, kind)

    def run(x: torch.Tensor, h: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, h, kept = x * 1, h * 1, [one * 1 for one in weights]
        output, last = layer(x, h, kept, True, 1, 0.0, True, both, False)
        parts = {"output": [output], "last": [last], "input": [x], "state": [h]}
        parts |= {"weights": [*kept[:2], *kept[4:6]], "biases": [*kept[2:4], *kept[6:]]}
        for one in parts[changed]:
            one.data.mul_(2)
        return output, last

    inputs = operands(3 if kind == "gru" else 1, both)
    grads = []
    for function in (run, framesmith.compile(run, strict=True)):
        output, last = function(*inputs)
        factors = torch.linspace(-1, 1, output.numel()).double().reshape(output.shape), torch.ones_like(last)
        grads.append(torch.autograd.grad((output, last), inputs, factors))
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("both", [False, True], ids=["one way", "two ways"])
@pytest.mark.parametrize("changed", ["output", "last", "last cell", "input", "state", "cell", "weights", "biases"])
def test_what_data_changes_in_an_lstm(changed: str, both: bool) -> None:
    """Eager mode reads all but gates and cells when the backward pass runs."""
    framesmith.reset()

    def run(x: torch.Tensor, h: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, h, c, kept = x * 1, h * 1, h * 2, [one * 1 for one in weights]
        output, last, cell = torch.lstm(x, (h, c), kept, True, 1, 0.0, True, both, False)
        parts = {"output": [output], "last": [last], "last cell": [cell], "input": [x], "state": [h], "cell": [c]}
        parts |= {"weights": [*kept[:2], *kept[4:6]], "biases": [*kept[2:4], *kept[6:]]}
        for one in parts[changed]:
            one.data.mul_(2)
        return output, last, cell

    inputs = [one.detach().float().requires_grad_() for one in operands(4, both)]
    grads = []
    for function in (run, framesmith.compile(run, strict=True)):
        output, last, cell = function(*inputs)
        factors = torch.linspace(-1, 1, output.numel()).reshape(output.shape)
        ones = torch.ones_like(last)
        grads.append(torch.autograd.grad((output, last, cell), inputs, (factors, ones, ones)))
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("changed", ["input", "weights", "biases"])
@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh"])
def test_what_data_changes_behind_the_call(kind: str, changed: str) -> None:
    """Gates are those of the forward pass, whatever operands become before the backward pass."""
    framesmith.reset()
    layer = getattr(torch, kind)

    def run(x: torch.Tensor, h: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return layer(x, (h, h) if kind == "lstm" else h, weights, True, 1, 0.0, True, False, False)[0]

    grads = []
    for function in (run, framesmith.compile(run, strict=True)):
        x, h, *weights = [
            one.detach().float().requires_grad_() for one in operands({"lstm": 4, "gru": 3}.get(kind, 1), both=False)
        ]
        output = function(x, h, *weights)
        for one in {"input": [x], "weights": weights[:2], "biases": weights[2:]}[changed]:
            one.data.mul_(2)
        factors = torch.linspace(-1, 1, output.numel()).reshape(output.shape)
        grads.append(torch.autograd.grad(output, (x, h, *weights), factors))
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("changed", range(4), ids=["input", "state", "weight", "weight of the state"])
def test_what_eager_keeps_must_not_change_in_the_call(changed: int) -> None:
    framesmith.reset()

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        kept = [one * 1 for one in inputs]
        output = torch.rnn_tanh(kept[0], kept[1], kept[2:], True, 1, 0.0, True, False, False)[0]
        with torch.no_grad():
            kept[changed].add_(0)
        return output

    inputs = operands(1, both=False)
    for function in (run, framesmith.compile(run, strict=True)):
        with pytest.raises(RuntimeError, match=r"modified (by an )?inplace"):
            torch.autograd.grad(function(*inputs).sum(), inputs)


def operands(gates: int, both: bool) -> list[torch.Tensor]:
    """An input, a state and weights, for both directions if asked."""
    torch.manual_seed(0)
    weights = [(gates * 4, 5), (gates * 4, 4), (gates * 4,), (gates * 4,)] * (1 + both)
    return [torch.randn(size).double().requires_grad_() for size in [(STEPS, 2, 5), (1 + both, 2, 4), *weights]]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_gradients_of_the_two_biases_are_two_tensors(kind: type[nn.RNNBase]) -> None:
    layer = kind(4, 4)
    x, biases = torch.randn(2, 4), [layer.bias_ih_l0, layer.bias_hh_l0]
    grads = torch.autograd.grad(framesmith.compile(layer, strict=True)(x)[0].sum(), biases)
    assert grads[0].data_ptr() != grads[1].data_ptr()
    torch.testing.assert_close(grads, torch.autograd.grad(layer(x)[0].sum(), biases))
