"""Loops over time as operators: ATen's layers whole, and the backward passes of their states."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from framesmith_aten.operators import is_effect, is_random
from framesmith_aten.tracing import recurrent_loops

Tensor = torch.Tensor
STEPS, BATCH, SIZE = 5, 3, 4


def numbers(*size: int) -> Tensor:
    torch.manual_seed(sum(size))
    return torch.randn(size, dtype=torch.float64)


@pytest.mark.parametrize("name", recurrent_loops.LAYERS)
def test_a_layer_is_atens(name: str) -> None:
    cls = {"gru": torch.nn.GRU}.get(name, torch.nn.RNN)
    options = {} if name == "gru" else {"nonlinearity": name.removeprefix("rnn_")}
    layer = cls(6, SIZE, **options).double().requires_grad_(False)
    input, state = numbers(STEPS, BATCH, 6), numbers(1, BATCH, SIZE)
    args = (input, state, [*layer.parameters()], True, 1, 0.0, False, False, False)
    found, wanted = recurrent_loops.layer(name)(*args), layer(input, state)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = recurrent_loops.layer(name)(*[mode.from_tensor(one) for one in args[:2]], *args[2:])
    for one, two, fake in zip(found, wanted, fakes, strict=True):
        assert torch.equal(one, two) and one.stride() == two.stride()
        assert (fake.shape, fake.stride(), fake.dtype) == (one.shape, one.stride(), one.dtype)


def test_the_backward_pass_of_a_gru_is_that_of_its_steps() -> None:
    grad, first, weight = numbers(STEPS, BATCH, SIZE), numbers(BATCH, SIZE), numbers(3 * SIZE, SIZE)
    gates = numbers(STEPS, BATCH, 3 * SIZE).requires_grad_()
    first.requires_grad_()
    own_gates, factors, state, states = [], [], first, []
    for gate in gates:
        own_gates.append(state @ weight.t())
        own_gates[-1].retain_grad()
        reset, update, new = gate.chunk(3, 1)
        own_reset, own_update, own = own_gates[-1].chunk(3, 1)
        reset, update = torch.sigmoid(reset + own_reset), torch.sigmoid(update + own_update)
        new = torch.tanh(new + reset * own)
        slopes = (1 - update) * (1 - new**2), (state - new) * update * (1 - update)
        factors.append((update, *slopes, reset, own * reset * (1 - reset)))
        state = (state - new) * update + new
        states.append(state)
    torch.stack(states).backward(grad)
    args = [torch.stack(one).detach() for one in zip(*factors, strict=True)]
    found = recurrent_loops.gru_backward()(grad, *args, weight)
    wanted = gates.grad, torch.stack([one.grad for one in own_gates]), first.grad
    torch.testing.assert_close(found, wanted)
    with FakeTensorMode() as mode:
        fakes = recurrent_loops.gru_backward()(*map(mode.from_tensor, (grad, *args, weight)))
    assert [one.shape for one in fakes] == [one.shape for one in found]


def test_the_backward_pass_of_an_rnn_is_that_of_its_steps() -> None:
    grad, first, weight = numbers(STEPS, BATCH, SIZE), numbers(BATCH, SIZE), numbers(SIZE, SIZE)
    gates, state, states = numbers(STEPS, BATCH, SIZE).requires_grad_(), first.requires_grad_(), []
    for gate in gates:
        state = torch.tanh(gate + state @ weight.t())
        states.append(state)
    torch.stack(states).backward(grad)
    given = grad.clone()
    found = recurrent_loops.rnn_backward()(given, 1 - torch.stack(states).detach() ** 2, weight)
    torch.testing.assert_close(found, (gates.grad, first.grad))
    assert torch.equal(given, grad)


def test_gradients_that_are_expanded_are_taken() -> None:
    grad, slope, weight = torch.ones(()).expand(STEPS, BATCH, SIZE), torch.ones(STEPS, BATCH, SIZE), torch.eye(SIZE)
    found, first = recurrent_loops.rnn_backward()(grad, slope, weight)
    assert torch.equal(found[:, 0, 0], torch.arange(STEPS, 0.0, -1)) and found.is_contiguous()
    assert torch.equal(first, torch.full((BATCH, SIZE), float(STEPS)))


def test_they_are_operators_without_effects() -> None:
    for op in (recurrent_loops.layer("gru"), recurrent_loops.gru_backward(), recurrent_loops.rnn_backward()):
        assert not is_effect(op) and not is_random(op)
