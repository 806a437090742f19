"""Captured launches: which calls are replayed, and that results are the same. A capturer for CPU tensors stands in."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stand_ins.capturer import StandIn

from framesmith_backends import reporting
from framesmith_backends.cuda_graphs import capture, captured_graph
from framesmith_backends.cuda_graphs.capturable import Parameters
from framesmith_backends.cuda_graphs.capture import OF_CAPTURES
from framesmith_backends.cuda_graphs.captured_graph import MOST_CAPTURES, MOST_VARIANTS, CapturedGraph

Function = Callable[..., Any]


def captured_graph_of(
    function: Function, tensors: int = 1, *, numbers: int = 0, varying: bool = False, written: tuple[int, ...] = ()
) -> tuple[CapturedGraph, StandIn]:
    """The function of tensors and then numbers, captured."""

    def run(args: list[Any]) -> Any:
        values = [*args]
        args.clear()
        result = function(*values)
        return result if isinstance(result, (tuple, list)) else (result,)

    positions = tuple(range(tensors))
    parameters = Parameters(
        positions, tuple(range(tensors, tensors + numbers)), positions if varying else (), frozenset(written)
    )
    capturer = StandIn()
    return CapturedGraph(run, parameters, capturer, "the graph"), capturer


@pytest.fixture(autouse=True)
def notices(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    reporting.warn_once.cache_clear()
    with caplog.at_level(logging.WARNING, "framesmith.plan"):
        yield caplog


def test_the_first_call_runs_the_second_captures_and_later_ones_replay() -> None:
    call, capturer = captured_graph_of(lambda x: x * 2 + 1)
    x = torch.arange(5.0)
    for step in range(4):
        x.fill_(step)
        args = [x]
        (y,) = call(args)
        assert torch.equal(y, x * 2 + 1) and args == []
        del y
    assert (capturer.captured, capturer.replayed, capturer.copied) == (1, 3, 0)
    assert (call.counts.captured, call.counts.replayed, call.counts.plain) == (1, 3, 1)


def test_results_that_are_held_never_change() -> None:
    call, capturer = captured_graph_of(lambda x: (x + 1, x[0] * 2))
    x, held, expected = torch.zeros(3), [], []
    for step in range(12):
        x.fill_(step)
        held.append(call([x]))
        expected.append((x + 1, x[0] * 2))
    for given_out, right in zip(held, expected, strict=True):
        assert all(map(torch.equal, given_out, right))
    assert capturer.captured == MOST_CAPTURES + 1 and capturer.replayed == 11
    held.clear()
    positions = {call([x])[0].data_ptr() for _ in range(5)}
    assert capturer.captured == MOST_CAPTURES + 1 and capturer.replayed == 16 and len(positions) == 1


def test_copies_of_results_share_memory_as_the_results_do() -> None:
    def function(x: torch.Tensor) -> tuple[Any, ...]:
        total = torch.stack([x + 1, x * 2])
        return total, total[1], total.t()[1:], total.new_empty(0), x, total, x[1:], x.long()

    call, capturer = captured_graph_of(function)
    x, held = torch.arange(4.0), []
    for step in range(MOST_CAPTURES + 5):
        x.fill_(step)
        results, right = call([x]), function(x)
        tensors = list(zip(results, right, strict=True))
        assert all(torch.equal(one, other) and one.stride() == other.stride() for one, other in tensors)
        assert results[5] is results[0] and results[4] is x and results[6].data_ptr() == x[1:].data_ptr()
        assert results[1].storage_offset() == right[1].storage_offset() and results[0]._version == 0
        results[1].fill_(step + 100)
        assert torch.equal(results[0][1], results[1]) and torch.equal(results[2][:, 1], results[1][1:])
        held.append(results)
    assert capturer.captured == MOST_CAPTURES + 1 and capturer.replayed == len(held) - 1
    assert all(one[1].eq(step + 100).all() for step, one in enumerate(held))
    held.append(results[0].untyped_storage().resize_(0))
    assert torch.equal(call([x])[0], function(x)[0])


def test_copies_are_of_what_their_mode_makes() -> None:
    call, capturer = captured_graph_of(lambda x: x + 1)
    x, held = torch.ones(3), []
    for inference in [True, False] * (MOST_CAPTURES + 3):
        with torch.inference_mode(inference):
            held.append(call([x])[0])
            assert held[-1].is_inference() == inference
        assert torch.equal(held[-1], x + 1)
    assert capturer.captured == 2 * (MOST_CAPTURES + 1) and call.counts.plain == 2


def test_what_gives_copies_follows_a_parameter_that_moves() -> None:
    call, capturer = captured_graph_of(lambda w: w * 2)
    held: list[torch.Tensor] = []
    for value in (1.0, 2.0):
        w = torch.full((3,), value)
        held += [w, *(call([w])[0] for _ in range(MOST_CAPTURES + 4))]
        assert torch.equal(held[-1], w * 2)
    assert capturer.copied == 0 and call.counts.plain <= 2 and capturer.captured == 2 * (MOST_CAPTURES + 1)


def test_it_is_reported_once_that_results_are_held(
    monkeypatch: pytest.MonkeyPatch, notices: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(capture, "MOST_COPIED", 1 << 20)
    call, capturer = captured_graph_of(lambda x: x + 1)
    x = torch.zeros((1 << 18) + 1)
    held = [call([x]) for _ in range(MOST_CAPTURES + 5)]
    assert capturer.captured == capturer.replayed == MOST_CAPTURES == len(held) - 5
    assert [record.getMessage() for record in notices.records] == [
        "the graph runs without CUDA graphs where results of its last 4 calls are still held, since they are more than "
        "1 MiB; drop them, or keep clones"
    ]


def test_results_of_two_types_in_one_memory_are_not_copied(notices: pytest.LogCaptureFixture) -> None:
    call, capturer = captured_graph_of(lambda x: ((total := x + 1), total.view(torch.int32)))
    x = torch.zeros(3)
    held = [call([x]) for _ in range(MOST_CAPTURES + 3)]
    assert all(torch.equal(one[0], x + 1) and one[1].data_ptr() == one[0].data_ptr() for one in held)
    assert capturer.captured == MOST_CAPTURES and "of different types" in notices.text


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "hold",
    [
        lambda y: y.view(-1)[1:],
        lambda y: y.untyped_storage(),
        lambda y: y.detach(),
        lambda y: torch.ones(3, requires_grad=True) * y,  # its history holds it
        lambda y: y.numpy(),
    ],
    ids=["view", "storage", "alias", "history", "numpy"],
)
def test_whatever_holds_a_result_keeps_it(hold: Function) -> None:
    call, capturer = captured_graph_of(lambda x: x + 1)
    x = torch.zeros(3)
    call([x])
    held = hold(call([x])[0])
    assert capturer.captured == 1
    call([x])
    assert capturer.captured == 2
    del held
    gc.collect()
    first, second = call([x])[0], call([x])[0]
    assert capturer.captured == 2 and first.data_ptr() != second.data_ptr()


def test_what_the_user_does_to_a_result_is_the_users() -> None:
    call, _ = captured_graph_of(lambda x: x + 1)
    x = torch.zeros(3)
    for _ in range(4):
        (y,) = call([x])
        assert y._version == 0 and torch.equal(y, torch.ones(3))
        y.add_(5)
        assert y._version == 1


def test_a_result_whose_memory_was_made_another_is_not_written_to() -> None:
    call, capturer = captured_graph_of(lambda x: x + 1)
    x = torch.zeros(3)
    call([x])
    (y,) = call([x])
    y.resize_(10_000)
    del y
    assert torch.equal(call([x])[0], torch.ones(3))
    assert capturer.captured == 2


def test_an_input_at_changing_addresses_is_copied() -> None:
    call, capturer = captured_graph_of(lambda w, x: w * x, 2)
    w, kept = torch.full((3,), 2.0), []
    for step in range(6):
        x = torch.full((3,), float(step))
        kept.append(x)
        assert torch.equal(call([w, x])[0], w * x)
    assert (capturer.captured, capturer.copied, capturer.replayed) == (1, 1, 5)


def test_a_parameter_that_moved_is_read_at_its_new_place() -> None:
    call, capturer = captured_graph_of(lambda w, x: w * x, 2)
    w, x = torch.full((3,), 2.0), torch.ones(3)
    for _ in range(3):
        call([w, x])
    moved = torch.full((3,), 3.0)
    for _ in range(4):
        assert torch.equal(call([moved, x])[0], moved)
    assert (capturer.captured, capturer.copied, call.counts.plain) == (2, 0, 2)


def test_an_input_that_moves_for_ever_is_copied_in_the_end() -> None:
    call, capturer = captured_graph_of(lambda x: x + 1)
    kept = [torch.full((3,), float(k)) for k in range(12)]
    for x in [kept[0]] * 3 + kept:
        assert torch.equal(call([x])[0], x + 1)
    assert capturer.copied == 1 and capturer.captured <= 3 and capturer.replayed >= 10


def add_in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = x + y
    x.copy_(total)
    return total * 2


@pytest.mark.parametrize("moving", [False, True])
def test_inputs_are_written_to_wherever_they_are(moving: bool) -> None:
    call, capturer = captured_graph_of(add_in_place, 2, written=(0,))
    x, y, kept = torch.ones(3), torch.ones(3), []
    for step in range(6):
        x = x.clone() if moving else x
        kept.append(x)
        (total,) = call([x, y])
        assert torch.equal(x, torch.full((3,), 2.0 + step)) and torch.equal(total, x * 2)
        del total
    assert (capturer.captured, capturer.replayed, capturer.copied) == (1, 5, int(moving))


@pytest.mark.parametrize("written", [0, 1])
def test_a_copy_of_memory_that_is_written_to_is_not_made(written: int) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        target, other = (x, y) if written == 0 else (y, x)
        total = x + y
        target[:1].copy_(total[:1])
        return total + other  # sees what was written where both show the same memory

    call, _ = captured_graph_of(function, 2, written=(written,))
    x = torch.ones(8)
    for at in (0, 1, 2, 3, 0, 1):
        expected = x.clone()
        right = function(expected[:4], expected[at : at + 4])
        assert torch.equal(call([x[:4], x[at : at + 4]])[0], right) and torch.equal(x, expected)
    others = [torch.full((4,), float(k)) for k in range(6)]
    for y in others:
        x, other = torch.ones(4), y.clone()
        expected = torch.ones(4)
        right = function(expected, other)
        assert torch.equal(call([x, y])[0], right) and torch.equal(x, expected) and torch.equal(y, other)


def test_fixed_inputs_may_lie_over_each_other() -> None:
    call, capturer = captured_graph_of(add_in_place, 2, written=(0,))
    x = torch.ones(6)
    for _ in range(4):
        expected = x.clone()
        right = add_in_place(expected[:4], expected[2:])
        assert torch.equal(call([x[:4], x[2:]])[0], right) and torch.equal(x, expected)
    assert capturer.captured == 1


def test_expanded_inputs_are_copied_as_what_they_are() -> None:
    call, capturer = captured_graph_of(lambda x: x + torch.arange(3.0))
    kept = [torch.tensor([[float(k)], [0.0]]) for k in range(5)]
    for x in kept:
        assert torch.equal(call([x.expand(2, 3)])[0], x + torch.arange(3.0))
    assert capturer.captured == 1 and capturer.copied == 1


def test_inputs_that_overlap_otherwise_are_not_copied(notices: pytest.LogCaptureFixture) -> None:
    call, capturer = captured_graph_of(lambda x: x + 1)
    kept = [torch.arange(6.0) + k for k in range(4)]
    for x in kept:
        assert torch.equal(call([x.unfold(0, 3, 1)])[0], x.unfold(0, 3, 1) + 1)
    assert capturer.captured == 0 and "cannot be copied element by element" in notices.text
    x = kept[0].unfold(0, 3, 1)
    other, capturer = captured_graph_of(lambda x: x + 1)
    for _ in range(3):
        assert torch.equal(other([x])[0], x + 1)
    assert capturer.replayed == 2


def test_strided_and_offset_inputs_keep_their_strides() -> None:
    call, capturer = captured_graph_of(lambda x: torch.tensor(x.stride()) + x.sum().long())
    kept = [torch.randint(9, (4, 6)).float() for _ in range(4)]
    for x in kept:
        part = x.t()[1::2, 1:]
        assert torch.equal(call([part])[0], torch.tensor(part.stride()) + part.sum().long())
    assert capturer.replayed == 3


def test_results_of_every_kind() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
        total = x + y
        return total, None, 7, x, total, y[1:3], total.view(2, 2), total.new_empty(0), y

    for moving in (False, True):
        call, capturer = captured_graph_of(function, 2)
        x, y, kept = torch.arange(4.0), torch.ones(4), []
        for step in range(5):
            y = y.clone() if moving else y
            kept.append(y)
            y.fill_(step)
            results = call([x, y])
            right = function(x, y)
            assert results[1:3] == right[1:3] or list(results[1:3]) == [None, 7]
            tensors = [r for r in results if isinstance(r, torch.Tensor)]
            assert all(map(torch.equal, tensors, [r for r in right if isinstance(r, torch.Tensor)]))
            assert results[3] is x and results[4] is results[0] and results[8] is y
            results[5].add_(1)
            assert y[1] == step + 1
            results[6].add_(1)
            assert torch.equal(results[0], right[0] + 1)
        assert capturer.replayed == 4


def test_inputs_without_elements() -> None:
    call, capturer = captured_graph_of(lambda x, y: (x * 2, y.sum()), 2)
    for _ in range(3):
        empty, total = call([torch.empty(0, 3), torch.empty(0)])
        assert empty.shape == (0, 3) and total == 0
    assert capturer.replayed == 2


def test_each_set_of_sizes_has_its_captures_up_to_a_number(notices: pytest.LogCaptureFixture) -> None:
    call, capturer = captured_graph_of(lambda x: x * 2, varying=True)
    sizes = range(1, MOST_VARIANTS + 4)
    tensors = [torch.arange(float(size)) for size in sizes]
    for _ in range(4):
        for x in tensors:
            assert torch.equal(call([x])[0], x * 2)
    assert capturer.captured == MOST_VARIANTS and capturer.replayed == 3 * MOST_VARIANTS
    assert [record.getMessage() for record in notices.records] == [
        "the graph runs without CUDA graphs: it is captured for 16 sets of sizes and numbers already; pad sizes to few "
        "lengths, and pass varying numbers as tensors"
    ]


@torch.no_grad()
def test_layers_that_share_a_graph_have_captures_of_their_own() -> None:
    call, capturer = captured_graph_of(lambda x, w, b: x @ w + b, 3)
    layers = [(torch.nn.Parameter(torch.randn(3, 3)), torch.nn.Parameter(torch.randn(3))) for _ in range(4)]
    for _ in range(5):
        x = torch.randn(2, 3)
        wanted = x
        for w, b in layers:
            wanted = wanted @ w + b
        for w, b in layers:
            (x,) = call([x, w, b])
        torch.testing.assert_close(x, wanted)
    assert capturer.copied <= 2 * 4 and call.counts.plain == 4  # the activation alone, where its address is another
    assert capturer.replayed == 4 * 4 and not any({1, 2} & variant.moving for variant in call._variants.values())


@torch.no_grad()
def test_captures_of_parameters_that_are_gone_go_too() -> None:
    call, _ = captured_graph_of(lambda x, w: x * w, 2)
    x = torch.ones(3)
    for step in range(20):
        w = torch.nn.Parameter(torch.full((3,), float(step)))
        for _ in range(3):
            assert torch.equal(call([x, w])[0], w)
        w.data = torch.zeros(3)
        assert torch.equal(call([x, w])[0], w)
        assert len(call._variants) <= 2
    assert call.counts.captured == 20


@torch.no_grad()
def test_there_are_so_many_layers(monkeypatch: pytest.MonkeyPatch, notices: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(captured_graph, "MOST_LAYERS", 3)
    call, capturer = captured_graph_of(lambda w: w * 2)
    layers = [torch.nn.Parameter(torch.full((3,), float(layer))) for layer in range(5)]
    for _ in range(3):
        for w in [w for w in layers for _ in range(2)]:
            assert torch.equal(call([w])[0], (w * 2))
    assert capturer.captured == 3
    reported = [record.getMessage() for record in notices.records]
    assert reported == ["the graph is not captured for the parameters of more than 3 modules"]


def test_sizes_met_once_are_forgotten() -> None:
    call, capturer = captured_graph_of(lambda x: x * 2, varying=True)
    for size in range(1000):
        call([torch.empty(size)])
    assert len(call._variants) <= captured_graph.MOST_MET and capturer.captured == 0
    x = torch.ones(3)
    for _ in range(3):
        call([x])
    assert capturer.replayed == 2


def test_numbers_that_never_come_again_are_reported(notices: pytest.LogCaptureFixture) -> None:
    call, _ = captured_graph_of(lambda x, n: x * n, numbers=1)
    x = torch.ones(3)
    for step in range(200):
        assert torch.equal(call([x, float(step)])[0], x * step)
    assert call.counts.captured == 0
    (reported,) = [record.getMessage() for record in notices.records]
    assert "pass varying numbers as tensors" in reported


@pytest.mark.parametrize("shown", [torch.Tensor.conj, lambda z: z.conj().imag, lambda z: z * 1 + z.conj()])
def test_what_is_shown_conjugated_stays_so(shown: Function) -> None:
    call, _ = captured_graph_of(lambda z: (shown(z), z * 2))
    z = torch.randn(4, dtype=torch.complex64)
    for _ in range(4):
        found, doubled = call([z])
        assert torch.equal(found, shown(z)) and torch.equal(doubled, z * 2)
        del found, doubled


def test_numbers_are_distinguished_by_their_bits() -> None:
    call, capturer = captured_graph_of(lambda x, n: x / n, 1, numbers=1)
    x = torch.ones(2)
    for _ in range(3):
        for number in (0.0, -0.0, 1, 1.0, True, float("nan")):
            assert torch.equal(call([x, number])[0].nan_to_num(5), (x / number).nan_to_num(5))
    assert capturer.captured == 6 and capturer.replayed == 12


def test_what_fails_to_capture_runs_as_before(notices: pytest.LogCaptureFixture) -> None:
    call, capturer = captured_graph_of(add_in_place, 2, written=(0,))
    capturer.error = RuntimeError("operation not permitted when stream is capturing\nand more")
    x, y = torch.ones(3), torch.ones(3)
    for step in range(4):
        call([x, y])
        assert torch.equal(x, torch.full((3,), 2.0 + step))
    assert capturer.captured == 1
    assert [record.getMessage() for record in notices.records] == [
        "the graph runs without CUDA graphs: capture failed: RuntimeError: operation not permitted when stream is "
        "capturing"
    ]


def test_what_fails_to_capture_is_not_tried_for_other_sizes(notices: pytest.LogCaptureFixture) -> None:
    call, capturer = captured_graph_of(lambda x: x + 1, varying=True)
    capturer.error = RuntimeError("not permitted")
    for size in (2, 3, 2, 3):
        try:
            raise torch.OutOfMemoryError("handled by the user, who then calls")
        except torch.OutOfMemoryError:
            call([torch.ones(size)])
    assert capturer.captured == 1 and "capture failed: RuntimeError: not permitted" in notices.text


def test_huge_inputs_are_not_copied(monkeypatch: pytest.MonkeyPatch, notices: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(capture, "MOST_COPIED", 1 << 20)
    call, capturer = captured_graph_of(lambda x: x + 1)
    kept = [torch.full((1 << 18,), float(k)) for k in range(3)]
    big = [torch.full(((1 << 18) + 1,), float(k)) for k in range(3)]
    for x in kept:
        assert torch.equal(call([x])[0], x + 1)
    assert capturer.replayed == 2 and not notices.records
    call, capturer = captured_graph_of(lambda x: x + 1)
    for x in big:
        assert torch.equal(call([x])[0], x + 1)
    assert capturer.replayed == 0 and "more than 1 MiB come at changing addresses" in notices.text


def test_memory_that_is_short_is_given_one_more_chance(notices: pytest.LogCaptureFixture) -> None:
    call, capturer = captured_graph_of(lambda x: x + 1)
    x = torch.ones(3)
    capturer.error = torch.OutOfMemoryError("CUDA out of memory")
    call([x]), call([x])
    assert capturer.made_room == 1 and not notices.records
    capturer.error = None
    call([x]), call([x])
    assert capturer.replayed == 2
    other, capturer = captured_graph_of(lambda x: x + 1)
    capturer.error = torch.OutOfMemoryError("CUDA out of memory")
    capturer.at_end = RuntimeError("a capture that could not be ended")
    for _ in range(5):
        assert torch.equal(other([x])[0], x + 1)
    assert capturer.captured == 2 and "not enough memory" in notices.text


def test_what_the_user_captures_is_the_users() -> None:
    call, capturer = captured_graph_of(lambda x: x + 1)
    x = torch.ones(3)
    call([x]), call([x])
    capturer.capturing = True
    assert torch.equal(call([x])[0], x + 1)
    assert capturer.replayed == 1


def test_switches_of_the_user_are_seen() -> None:
    call, capturer = captured_graph_of(lambda x: x * (2 if capturer.switch else 3))
    x = torch.ones(3)
    for switch in (False, True, False, True, False):
        capturer.switch = switch
        assert torch.equal(call([x])[0], x * (2 if switch else 3))
    assert capturer.captured == 2


def test_results_of_inference_mode_stay_there() -> None:
    call, _ = captured_graph_of(lambda x: x + 1)
    x = torch.ones(3)
    for inference in (True, True, False, False, True):
        with torch.inference_mode(inference):
            assert call([x])[0].is_inference() == inference


def test_inputs_that_want_gradients_leave_no_history() -> None:
    call, capturer = captured_graph_of(lambda w, x: w.detach() * x.detach(), 2)
    w = torch.ones(3, requires_grad=True)
    kept = [torch.full((3,), float(k), requires_grad=True) for k in range(4)]
    for x in kept:
        (y,) = call([w, x])
        assert torch.equal(y, x) and not y.requires_grad and x._version == 0
        del y
    assert capturer.copied == 1


def test_random_numbers_are_those_of_eager_mode() -> None:
    call, _ = captured_graph_of(lambda x: x + torch.rand(3))
    x = torch.zeros(3)
    torch.manual_seed(0)
    found = [call([x])[0].clone() for _ in range(4)]
    torch.manual_seed(0)
    assert all(torch.equal(one, torch.rand(3)) for one in found)


def test_results_that_something_else_holds_are_not_captured(notices: pytest.LogCaptureFixture) -> None:
    constant = torch.ones(3)
    call, _ = captured_graph_of(lambda x: (x + 1, constant))
    for _ in range(3):
        assert call([torch.zeros(3)])[1] is constant
    assert "something else holds its results" in notices.text


def test_activations_are_read_where_the_forward_capture_left_them() -> None:
    forward, first = captured_graph_of(lambda x: (x.sin(), x.cos()))
    backward, second = captured_graph_of(lambda cos, tangent: cos * tangent, 2)
    kept, gradient = [], None
    for step in range(12):
        x = torch.full((4,), float(step))
        kept.append(x)
        y, cos = forward([x])  # the y of the step before is held meanwhile
        tangent = torch.full((4,), 2.0)
        kept.append(tangent)
        args = [cos, tangent]
        del cos
        (gradient,) = backward(args)
        assert torch.equal(y, x.sin()) and torch.equal(gradient, x.cos() * 2)
    assert first.captured == 2 and first.copied == 2  # x, in both
    assert second.captured <= 4 and second.copied == second.captured  # the tangent alone
    assert forward.counts.plain == 1 and backward.counts.plain <= 1


def test_gradients_that_are_added_up_leave_a_capture_for_the_next_ones() -> None:
    backward, capturer = captured_graph_of(lambda x: x * 2)
    x = torch.ones(4)
    for _ in range(3):
        total = backward([x])[0]
        for _ in range(3):
            total.add_(backward([x])[0])
        assert torch.equal(total, torch.full((4,), 8.0))
        del total
    assert capturer.captured == 2 and backward.counts.plain == 1


def test_threads_do_not_see_each_others_results() -> None:
    call, _ = captured_graph_of(lambda x: (x * 2, x.sum()), varying=True)
    wrong: list[object] = []

    def work(number: int) -> None:
        x = torch.full((3 + number % 2,), float(number))
        for _ in range(200):
            y, total = call([x])
            if not (torch.equal(y, x * 2) and total == x.sum()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and call.counts.replayed > 0


def test_results_outlive_the_function() -> None:
    call, _ = captured_graph_of(lambda x: x + 1)
    x = torch.ones(3)
    call([x])
    (y,) = call([x])
    address = y.data_ptr()
    assert OF_CAPTURES[address]
    del call
    gc.collect()
    assert torch.equal(y, x + 1) and address not in OF_CAPTURES


@pytest.mark.parametrize("most", [1, MOST_CAPTURES], ids=["copies soon", "as it is"])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_order_of_calls_gives_what_eager_gives(most: int, data: st.DataObject) -> None:
    """Two tensors and one that is written to, each at one of some addresses or a new one; results kept, changed."""
    with mock.patch.object(captured_graph, "MOST_CAPTURES", most):
        any_order_of_calls(data)


def any_order_of_calls(data: st.DataObject) -> None:
    def function(w: torch.Tensor, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = torch.sin(w * x + state)  # bounded: results come back as inputs, and no NaN equals itself
        state.copy_(total)
        return total + 1, total.flip(0), x

    torch.manual_seed(0)  # what fails fails again
    call, _ = captured_graph_of(function, 3, varying=True, written=(2,))
    pools = {size: [torch.randn(size) for _ in range(4)] for size in (2, 3)}
    states = {size: [torch.zeros(size) for _ in range(2)] for size in (2, 3)}
    held: list[tuple[torch.Tensor, torch.Tensor]] = []
    for _ in range(data.draw(st.integers(2, 25))):
        size = data.draw(st.sampled_from([2, 2, 2, 3]))
        pool = [*pools[size], *(y for y, _ in held if y.shape == (size,))]
        w = data.draw(st.sampled_from([pool[0], pool[0], torch.randn(size)]))
        x = data.draw(st.sampled_from(pool))
        state = data.draw(st.sampled_from([states[size][0], states[size][0], states[size][1], w]))
        copies = {id(t): t.clone() for t in (w, x, state)}
        right = function(*(copies[id(t)] for t in (w, x, state)))
        results = call([w, x, state])
        assert all(torch.equal(t, copies[id(t)]) for t in (w, x, state))
        assert all(map(torch.equal, results, right)) and results[2] is x
        for index, (kept, expected) in enumerate(held):
            if kept is w or kept is x or kept is state:
                held[index] = kept, kept.clone()
            else:
                assert torch.equal(kept, expected)
        if data.draw(st.booleans()):
            held.append((results[0], results[0].clone()))
        if held and data.draw(st.booleans()):
            held.pop(data.draw(st.integers(0, len(held) - 1)))
        if held and data.draw(st.booleans()):
            held[0][0].mul_(3)
            held[0] = held[0][0], held[0][0].clone()
        del results, right, pool, w, x, state


def test_many_forward_passes_before_their_backward_passes() -> None:
    """Activations of the first lie in captures, those of later ones in copies."""
    forward, first = captured_graph_of(lambda x: (x.sin(), x.cos()))
    backward, second = captured_graph_of(lambda cos, tangent: cos * tangent, 2)
    tangent = torch.full((4,), 2.0)
    passes = MOST_CAPTURES + 4
    for step in range(5):
        batches = [torch.full((4,), float(step * passes + k)) for k in range(passes)]
        made = [forward([x]) for x in batches]
        for x, (y, _) in zip(batches, made, strict=True):
            assert torch.equal(y, x.sin())
        for x in batches:
            args = [made.pop(0)[1], tangent]
            (gradient,) = backward(args)
            assert torch.equal(gradient, x.cos() * 2)
        del y, gradient
    assert first.captured == MOST_CAPTURES + 1 and forward.counts.plain == 1
    assert second.captured == MOST_CAPTURES + 2 and backward.counts.plain <= 4  # one gradient is held meanwhile
