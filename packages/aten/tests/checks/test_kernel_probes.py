"""Strides of real kernels' results, from probes that leave no trace."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from framesmith_aten.checks import kernel_probes
from framesmith_aten.nested import tensors_in
from framesmith_aten.recording import OperatorLog

aten = torch.ops.aten


@pytest.mark.parametrize("stride", [(1, 1), (1, 2), (2, 1), (1, 3)])
@pytest.mark.parametrize("function", [lambda x: x * 1, lambda x: x.exp(), lambda x: F.rrelu(x, training=True)])
def test_interleaved_memory(stride: tuple[int, int], function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(20).as_strided((2, 4), stride)
    mode = FakeTensorMode()
    fake = mode.from_tensor(x)
    with mode, OperatorLog():
        found = function(fake)
    assert found.stride() == function(x).stride()


def test_asking_draws_no_numbers() -> None:
    x = torch.randn(4, 6).t()
    state = torch.get_rng_state()
    mode = FakeTensorMode()
    fake = mode.from_tensor(x)
    with mode, OperatorLog():
        F.rrelu(fake, training=True)
    assert torch.equal(torch.get_rng_state(), state)


def test_operators_with_size_arguments_are_probed_on_tensors_of_these_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN's LSTM reads and writes by its size arguments."""
    asked: list[tuple[str, list[tuple[int, ...]]]] = []

    def note(op: Any, args: Any, kwargs: Any) -> kernel_probes.Verdict:
        asked.append((op._opname, [tuple(one.shape) for one in tensors_in(tuple(args))]))
        return kernel_probes.ACCEPTED

    monkeypatch.setattr(kernel_probes, "_answer", note)
    lstm = torch.nn.LSTM(17, 19)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, torch.no_grad():
        x, weights = torch.empty(2, 3, 17), [mode.from_tensor(one) for one in lstm._flat_weights]
        zeros = torch.zeros(3, 19)
        kernel_probes.verdict(
            torch.ops.aten.mkldnn_rnn_layer.default,
            (x, *weights, zeros, zeros, False, [], 2, 19, 1, True, False, False, False),
            {},
        )
    assert asked[-1][1][0] == (2, 3, 17)


@pytest.mark.parametrize("number, taken", [(70000, False), (300, False), (100, True)])
def test_numbers_that_do_not_fit(number: int, taken: bool) -> None:
    for op, args in ((torch.ops.aten.full.default, ([2], number)), (torch.ops.aten.scalar_tensor.default, (number,))):
        assert (kernel_probes.verdict(op, args, {"dtype": torch.int8}).refusal is None) is taken


def test_what_is_made_from_large_sizes_is_not_made() -> None:
    for op, args in ((torch.ops.aten.arange.default, (10**15,)), (torch.ops.aten.full.default, ([10**9, 10**6], 1))):
        assert not kernel_probes.verdict(op, args, {}).certain


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shape", [(1, 2, 2), (2, 1, 2), (2, 2, 1), (2, 3, 2), (1, 3, 1, 2), (3, 1, 2, 1)])
def test_pointwise_results_are_laid_out_as_the_real_ones(shape: tuple[int, ...]) -> None:
    """Dimensions of one element, expanded ones and those of equal strides count as they do for real tensors."""
    choices = random.Random(0)
    tanh, mul, clone = torch.ops.aten.tanh.default, torch.ops.aten.mul.Tensor, torch.ops.aten.clone.default
    mode = FakeTensorMode()
    for _ in range(150):
        strides = [[choices.choice((0, 1, 2, 3, 4, 6, 12)) for _ in shape] for _ in range(2)]
        real = [torch.zeros(128).as_strided(shape, stride) for stride in strides]
        with mode:
            fake = [torch.empty_strided(shape, stride) for stride in strides]
            found = [
                kernel_probes.as_laid_out(tanh, fake[:1], {}, tanh(fake[0])),
                kernel_probes.as_laid_out(mul, fake, {}, mul(*fake)),
                kernel_probes.as_laid_out(clone, fake[:1], {}, clone(fake[0])),
            ]
        for one, two in zip(found, (real[0].tanh(), real[0] * real[1], real[0].clone()), strict=True):
            assert two.stride() == one.stride(), strides


@pytest.mark.parametrize("dim", [-3, -2, -1, 0, 1])
def test_dimensions_that_are_not_there(dim: int) -> None:
    with FakeTensorMode():
        verdict = kernel_probes.verdict(torch.ops.aten.select.int, (torch.empty(4), dim, 0), {})
    assert (verdict.refusal is None) is (-1 <= dim < 1)


def test_sizes_that_no_strides_show() -> None:
    choices = random.Random(0)
    view, refused = torch.ops.aten.view.default, 0
    for _ in range(1000):
        size = [choices.choice((1, 2, 4)) for _ in range(choices.randint(1, 3))]
        strides = [choices.choice((0, 1, 2, 3, 4)) for _ in size]
        wanted = choices.choice([[-1], [2, -1], [1, -1], [-1, 1, 2]])
        if math.prod(size) < 2:
            continue
        real = torch.zeros(64).as_strided(size, strides)
        with FakeTensorMode():
            verdict = kernel_probes.verdict(view, (torch.empty_strided(size, strides), wanted), {})
        try:
            view(real, wanted)
        except RuntimeError:
            refused += 1
            assert verdict.refusal is not None, (size, strides, wanted)
        else:
            assert verdict is kernel_probes.ACCEPTED, (size, strides, wanted)
    assert refused > 100


def test_random_operators_are_asked_without_moving_a_generator() -> None:
    aten, own = torch.ops.aten, torch.Generator().manual_seed(1)
    states = torch.get_rng_state(), own.get_state()
    with FakeTensorMode():
        complex_, real = torch.empty(3, dtype=torch.complex64), torch.empty(3)
        assert kernel_probes.verdict(aten.bernoulli_.float, (complex_, 0.5), {}).refusal is not None
        assert kernel_probes.verdict(aten.bernoulli_.float, (real, 0.5), {}) is kernel_probes.ACCEPTED
        assert not kernel_probes.verdict(aten.bernoulli_.float, (real, 0.5), {"generator": own}).certain
    assert torch.equal(states[0], torch.get_rng_state()) and torch.equal(states[1], own.get_state())


def test_answers_hold_for_what_was_asked_and_no_more() -> None:
    aten = torch.ops.aten
    with FakeTensorMode():
        assert kernel_probes.verdict(aten.max.default, (torch.empty(5),), {}).refusal is None
        assert kernel_probes.verdict(aten.max.default, (torch.empty(0),), {}).refusal is not None
        assert kernel_probes.verdict(aten.topk.default, (torch.empty(2), 3), {}).refusal is not None
        assert kernel_probes.verdict(aten.topk.default, (torch.empty(5), 3), {}).refusal is None
        assert kernel_probes.verdict(aten.topk.default, (torch.empty(2), 3), {}).refusal is not None


def test_few_elements_that_are_too_few_warn_of_nothing() -> None:
    kernel_probes._verdicts.clear()
    with FakeTensorMode() as mode, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        x = mode.from_tensor(torch.ones(10))
        assert kernel_probes.verdict(torch.ops.aten.std.correction, (x, [0]), {"correction": 3}).certain
    assert not warned


@pytest.mark.parametrize("op", [aten.gather.default, aten.lu_unpack.default, aten.index.Tensor, aten.add.Tensor])
def test_indices_are_not_probed_on_a_gpu(op: Any) -> None:
    """Zeros may be no indices: there, that ends the use of the device instead of the call."""
    with FakeTensorMode():
        indices = torch.empty(2, dtype=torch.int64, device="cuda")
        numbers = torch.empty(2, device="cuda")
        assert kernel_probes.may_end_all(op, [numbers, indices]) == (op is not aten.add.Tensor)
        assert not kernel_probes.may_end_all(op, [numbers, numbers])
        assert not kernel_probes.may_end_all(op, [torch.empty(2), torch.empty(2, dtype=torch.int64)])


def test_results_of_unbacked_sizes_have_the_strides_of_real_ones() -> None:
    """Also where twice as many are asked about, and there is but one of the result in a probe."""
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        count = torch.ones(4).nonzero().shape[0]
        shuffled = torch.empty(1, 3, 2, 2 * count).transpose(2, 3)
        parts = aten.pixel_unshuffle.default(shuffled, 2)
        found = kernel_probes.as_laid_out(aten.pixel_unshuffle.default, (shuffled, 2), {}, parts)
        halves = torch.empty(3, count // 2).t()
        sums = kernel_probes.as_laid_out(aten.cumsum.default, (halves, 0), {}, aten.cumsum.default(halves, 0))
    assert mode.shape_env is not None
    for many in (1, 2, 5):
        real = aten.pixel_unshuffle.default(torch.empty(1, 3, 2, 2 * many).transpose(2, 3), 2)
        assert [_with(number, many) for number in found.stride()] == list(real.stride())
    for many in (4, 6, 11):
        real = aten.cumsum.default(torch.empty(3, many // 2).t(), 0)
        assert [_with(number, many) for number in sums.stride()] == list(real.stride())


def _with(number: Any, many: int) -> int:
    """The number, unbacked."""
    expr = number.node.expr if isinstance(number, torch.SymInt) else number
    return int(expr.subs(dict.fromkeys(expr.free_symbols, many))) if isinstance(number, torch.SymInt) else int(expr)


@pytest.mark.parametrize("shape", [(2, 32, 20, 30), (3, 8, 40, 50), (2, 64, 5, 6, 7)])
@pytest.mark.parametrize("groups", [1, 4])
def test_large_group_norms_of_channels_last(shape, groups):
    memory = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    x = torch.randn(shape).to(memory_format=memory)
    weight = torch.randn(shape[1])
    numbers = (shape[0], shape[1], x[0, 0].numel(), groups, 1e-5)
    op = aten.native_group_norm.default
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(one) for one in (x, weight, weight)]
        found = kernel_probes.as_laid_out(op, (*fakes, *numbers), {}, op(*fakes, *numbers))
        contiguous = [fakes[0].contiguous(), *fakes[1:]]
        usual = kernel_probes.as_laid_out(op, (*contiguous, *numbers), {}, op(*contiguous, *numbers))
    assert [one.stride() for one in found] == [one.stride() for one in op(x, weight, weight, *numbers)]
    assert [one.stride() for one in usual] == [one.stride() for one in op(x.contiguous(), weight, weight, *numbers)]


FEATURE_MAPS: dict[str, tuple[Any, tuple[int, ...], tuple[Any, ...]]] = {
    "reflect": (aten.reflection_pad2d.default, (2, 3, 40, 60), ([2, 0, 3, 1],)),
    "reflect, cropped": (aten.reflection_pad2d.default, (2, 3, 40, 60), ([-1, 2, 11, 1],)),
    "reflect, 3d": (aten.reflection_pad3d.default, (2, 3, 8, 20, 30), ([2, 1, 2, 3, 1, 1],)),
    "replicate": (aten.replication_pad2d.default, (3, 4, 40, 60), ([2, 30, 3, 1],)),
    "replicate, 3d": (aten.replication_pad3d.default, (1, 3, 8, 20, 30), ([2, 1, 2, 3, 1, 1],)),
    "shuffle": (aten.channel_shuffle.default, (2, 6, 40, 60), (3,)),
}


@pytest.mark.parametrize("name", FEATURE_MAPS)
@pytest.mark.parametrize("last", [True, False])
def test_large_feature_maps_have_the_strides_of_real_ones(name, last):
    op, shape, rest = FEATURE_MAPS[name]
    memory = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    x = torch.randn(shape).to(memory_format=memory if last else torch.contiguous_format)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        found = kernel_probes.as_laid_out(op, (fake, *rest), {}, op(fake, *rest))
    assert found.stride() == op(x, *rest).stride()
