"""Captured launches: which calls are replayed, and that results are the same. A stand-in captures CPU tensors."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stand_ins.captured import add_in_place, captured_graph_of

from framesmith_backends.cuda_graphs import captured_graph
from framesmith_backends.cuda_graphs.captured_graph import MOST_CAPTURES, MOST_VARIANTS


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


def test_numbers_are_distinguished_by_their_bits() -> None:
    call, capturer = captured_graph_of(lambda x, n: x / n, 1, numbers=1)
    x = torch.ones(2)
    for _ in range(3):
        for number in (0.0, -0.0, 1, 1.0, True, float("nan")):
            assert torch.equal(call([x, number])[0].nan_to_num(5), (x / number).nan_to_num(5))
    assert capturer.captured == 6 and capturer.replayed == 12


def test_a_failed_capture_runs_without_graphs(notices: pytest.LogCaptureFixture) -> None:
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


def test_a_failed_capture_is_not_tried_for_other_sizes(notices: pytest.LogCaptureFixture) -> None:
    call, capturer = captured_graph_of(lambda x: x + 1, varying=True)
    capturer.error = RuntimeError("not permitted")
    for size in (2, 3, 2, 3):
        try:
            raise torch.OutOfMemoryError("handled by the user, who then calls")
        except torch.OutOfMemoryError:
            call([torch.ones(size)])
    assert capturer.captured == 1 and "capture failed: RuntimeError: not permitted" in notices.text


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


def test_nothing_is_captured_within_a_users_capture() -> None:
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


def test_random_numbers_are_those_of_eager_mode() -> None:
    call, _ = captured_graph_of(lambda x: x + torch.rand(3))
    x = torch.zeros(3)
    torch.manual_seed(0)
    found = [call([x])[0].clone() for _ in range(4)]
    torch.manual_seed(0)
    assert all(torch.equal(one, torch.rand(3)) for one in found)


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
