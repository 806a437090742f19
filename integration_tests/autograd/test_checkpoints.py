"""Activation checkpoints in compiled functions, and compiled functions in checkpoints: values, gradients, memory."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import framesmith
from benchmarks.harness.tensors_made import peak_bytes
from benchmarks.models.checkpoint_programs import BLOCKS, PROGRAMS, ROWS, WIDTH, Block, Net, saved
from benchmarks.suites.calls.checkpoint_programs import USES, are_equal, net_of, outcomes


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    framesmith.reset()
    yield
    framesmith.reset()


def trained(net: nn.Module, call: Any, rows: tuple[int, ...]) -> list[Any]:
    """Three calls, the second as the first: results, gradients, random numbers afterwards."""
    found: list[Any] = []
    for step, count in enumerate(rows):
        torch.manual_seed(step)
        x = torch.randn(count, WIDTH, requires_grad=True)
        net.zero_grad()
        result = call(x)
        result.float().square().sum().backward()
        found += [result.detach().clone(), x.grad, torch.rand(2)]
        found += [None if p.grad is None else p.grad.clone() for p in net.parameters()]
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sizes", ["one size", "dynamic sizes"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_training_is_one_graph(name: str, sizes: str) -> None:
    torch.manual_seed(0)
    net = Net(PROGRAMS[name])
    other = copy.deepcopy(net)
    rows = (ROWS, ROWS, ROWS) if sizes == "one size" else (ROWS, 5, 11)
    compiled = framesmith.compile(other, fullgraph=True)
    near = {"rtol": 2e-2, "atol": 5e-2} if "autocast" in name else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(trained(other, compiled, rows), trained(net, net, rows), **near)
    assert framesmith.stats()["breaks"] == 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "result changed"])
def test_inference_is_one_graph(name: str, mode: Any) -> None:
    torch.manual_seed(0)
    net = Net(PROGRAMS[name]).eval()
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    with mode():
        torch.testing.assert_close(framesmith.compile(net, fullgraph=True)(x), net(x), rtol=2e-2, atol=2e-2)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_error_in_the_body_leaves_as_in_eager_mode(name: str) -> None:
    use = USES["error inside"]
    net = net_of(name)
    found = outcomes(net, framesmith.compile(net), use)
    near = {"rtol": 2e-2, "atol": 5e-2} if "autocast" in name else {"rtol": 1e-4, "atol": 1e-5}
    expected = net_of(name)
    assert are_equal(found, outcomes(expected, expected, use), near)
    assert framesmith.stats()["breaks"] == 0 and any(isinstance(one, str) for one in found) == (name != "no rng")


@pytest.mark.parametrize("rows", [(1024, 1024, 1024), (1024, 900, 1500)], ids=["one size", "dynamic sizes"])
@pytest.mark.parametrize("name", ["non-reentrant", "nested", "reentrant"])
def test_masks_are_drawn_again_as_they_were(name: str, rows: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    net = Net(PROGRAMS[name], dropout=0.4)
    other = copy.deepcopy(net)
    compiled = framesmith.compile(other, fullgraph=True)
    torch.testing.assert_close(trained(other, compiled, rows), trained(net, net, rows), rtol=1e-4, atol=1e-3)
    found = held(compiled(torch.randn(1024, WIDTH, requires_grad=True)), other)
    types = [dtype for _, dtype in found]
    assert types.count(torch.uint8) == BLOCKS and torch.bool not in types


def test_a_second_backward_pass_draws_the_same_masks() -> None:
    net = Net(PROGRAMS["non-reentrant"], dropout=0.4)
    x = torch.randn(1024, WIDTH, requires_grad=True)
    result = framesmith.compile(net)(x).sum()
    state = torch.get_rng_state()
    [first], [second] = (torch.autograd.grad(result, x, retain_graph=True) for _ in range(2))
    assert torch.equal(first, second) and torch.equal(torch.get_rng_state(), state)


def test_checkpoint_sequential() -> None:
    layers = nn.Sequential(*(Block() for _ in range(4)))
    net = Net(lambda _, x: checkpoint_sequential(layers, 2, x, use_reentrant=False), blocks=1)
    net.layers = layers
    other = copy.deepcopy(net)
    other.how = lambda _, x: checkpoint_sequential(other.layers, 2, x, use_reentrant=False)
    rows = (ROWS,) * 2
    found = trained(other, framesmith.compile(other, fullgraph=True), rows)
    torch.testing.assert_close(found, trained(net, net, rows), rtol=1e-4, atol=1e-5)


def held(result: torch.Tensor, net: nn.Module) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Shapes and dtypes of the tensors that a compiled graph's node saves, without parameters."""
    own = {p.data_ptr() for p in net.parameters()}
    tensors: Any = result.grad_fn.saved_tensors  # type: ignore[union-attr]
    return [(tuple(one.shape), one.dtype) for one in tensors if one.data_ptr() not in own]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("name", ["non-reentrant", "nested", "reentrant"])
def test_saved_are_inputs_of_checkpoints_and_masks(name: str, dropout: float) -> None:
    net = Net(PROGRAMS[name], dropout=dropout)
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    found = held(framesmith.compile(net)(x), net)
    whole = ((ROWS, WIDTH), torch.float32)
    masks = [((ROWS, WIDTH), torch.bool)] * (BLOCKS if dropout else 0)
    assert sorted(found, key=str) == sorted([whole] * (BLOCKS + 1) + masks, key=str)


def test_a_policy_saves_what_it_names() -> None:
    net = Net(PROGRAMS["selective"], dropout=0.0)
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    found = held(framesmith.compile(net)(x), net)
    assert found.count(((ROWS, 4 * WIDTH), torch.float32)) == BLOCKS  # the result of the first matmul of each block
    assert len(found) == 2 * BLOCKS + 1


def test_the_errors_of_torch() -> None:
    x = torch.randn(4, requires_grad=True)
    for options in ({"use_reentrant": True, "other": 1}, {"use_reentrant": False, "determinism_check": "wild"}):
        messages = []
        function = functools.partial(checkpoint, torch.sin, **options)
        for run in (function, framesmith.compile(lambda x, call=function: call(x))):
            with pytest.raises(ValueError) as caught:
                run(x)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]


def test_a_reentrant_checkpoint_refuses_other_ways_back() -> None:
    x = torch.randn(4, requires_grad=True)
    compiled = framesmith.compile(lambda x: checkpoint(torch.sin, x, use_reentrant=True) * 1)
    with pytest.raises(RuntimeError, match="incompatible"):
        torch.autograd.grad(compiled(x).sum(), x)
    with pytest.raises(RuntimeError, match="incompatible"):
        compiled(x).sum().backward(inputs=[x])
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos())


# Compiled functions in eager checkpoints


@pytest.mark.parametrize("how", ["non-reentrant", "reentrant", "nested", "selective"])
def test_compiled_blocks_in_an_eager_checkpoint(how: str) -> None:
    torch.manual_seed(0)
    net = Net(PROGRAMS[how])
    other = copy.deepcopy(net)
    for block in other.blocks:
        block.compile_with = framesmith.compile(block.forward)
        block.forward = block.compile_with
    rows = (ROWS, ROWS, 5)
    torch.testing.assert_close(trained(other, other, rows), trained(net, net, rows), rtol=1e-4, atol=1e-5)


def test_a_checkpoint_around_a_compiled_module() -> None:
    torch.manual_seed(0)
    net = Net(lambda block, x: block(x))
    compiled = framesmith.compile(net)
    rows = (ROWS, ROWS, 5)
    expected = trained(net, lambda x: saved(net, x), rows)
    torch.testing.assert_close(trained(net, lambda x: saved(compiled, x), rows), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("early_stop", [True, False])
def test_effects_in_an_eager_checkpoint_occur_as_often_as_in_eager_mode(early_stop: bool) -> None:
    counts = []
    for compile in (lambda function: function, framesmith.compile):
        seen: list[int] = []

        def function(x: torch.Tensor, seen: list[int] = seen) -> torch.Tensor:
            seen.append(1)
            y = x.sin().exp()
            seen.append(2)
            return y.cos()

        x = torch.randn(4, requires_grad=True)
        saved(compile(function), x, early_stop=early_stop).sum().backward()
        counts.append(seen)
    assert counts[0] == counts[1]


# Memory


@pytest.mark.sampled(2)
@pytest.mark.parametrize("blocks", [4, 12])
def test_the_backward_pass_recomputes_one_checkpoint_after_the_other(blocks: int) -> None:
    width, rows = 32, 2048
    peaks = {}
    for name in ("plain", "saved"):
        net = Net((lambda block, x: block(x)) if name == "plain" else PROGRAMS["non-reentrant"], width, blocks, 0.0)
        compiled = framesmith.compile(net)
        x = torch.randn(rows, width)

        def step(net: nn.Module = net, compiled: Any = compiled, x: torch.Tensor = x) -> None:
            net.zero_grad()
            compiled(x).sum().backward()

        for _ in range(3):
            step()
        peaks[name] = peak_bytes(step)
    activation = rows * width * 4
    assert peaks["saved"] < (blocks + 20) * activation  # a checkpoint's input each, and one block's values
    assert peaks["plain"] > peaks["saved"] + (blocks - 3) * 4 * activation
