"""Results of captured calls: held, copied, changed by the user, shared among calls. A stand-in captures CPU tensors."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from stand_ins.captured import captured_graph_of

from framesmith_backends.cuda_graphs import capture
from framesmith_backends.cuda_graphs.capture import OF_CAPTURES
from framesmith_backends.cuda_graphs.captured_graph import MOST_CAPTURES


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


def test_captures_that_give_copies_follow_a_parameter_that_moves() -> None:
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
def test_whatever_holds_a_result_keeps_it(hold: Callable[..., Any]) -> None:
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


def test_mutations_of_a_result_do_not_reach_the_next_call() -> None:
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


@pytest.mark.parametrize("shown", [torch.Tensor.conj, lambda z: z.conj().imag, lambda z: z * 1 + z.conj()])
def test_conjugated_results_stay_conjugated(shown: Callable[..., Any]) -> None:
    call, _ = captured_graph_of(lambda z: (shown(z), z * 2))
    z = torch.randn(4, dtype=torch.complex64)
    for _ in range(4):
        found, doubled = call([z])
        assert torch.equal(found, shown(z)) and torch.equal(doubled, z * 2)
        del found, doubled


def test_results_of_inference_mode_stay_there() -> None:
    call, _ = captured_graph_of(lambda x: x + 1)
    x = torch.ones(3)
    for inference in (True, True, False, False, True):
        with torch.inference_mode(inference):
            assert call([x])[0].is_inference() == inference


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
