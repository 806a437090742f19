"""Inputs of captured calls: at fixed and changing addresses, mutated, overlapping. A stand-in captures CPU tensors."""

from __future__ import annotations

import pytest
import torch
from stand_ins.captured import add_in_place, captured_graph_of

from framesmith_backends.cuda_graphs import capture


def test_an_input_at_changing_addresses_is_copied() -> None:
    call, capturer = captured_graph_of(lambda w, x: w * x, 2)
    w, kept = torch.full((3,), 2.0), []
    for step in range(6):
        x = torch.full((3,), float(step))
        kept.append(x)
        assert torch.equal(call([w, x])[0], w * x)
    assert (capturer.captured, capturer.copied, capturer.replayed) == (1, 1, 5)


def test_a_parameter_that_moved_is_read_at_its_new_address() -> None:
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


def test_inputs_without_elements() -> None:
    call, capturer = captured_graph_of(lambda x, y: (x * 2, y.sum()), 2)
    for _ in range(3):
        empty, total = call([torch.empty(0, 3), torch.empty(0)])
        assert empty.shape == (0, 3) and total == 0
    assert capturer.replayed == 2


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


def test_inputs_that_want_gradients_leave_no_history() -> None:
    call, capturer = captured_graph_of(lambda w, x: w.detach() * x.detach(), 2)
    w = torch.ones(3, requires_grad=True)
    kept = [torch.full((3,), float(k), requires_grad=True) for k in range(4)]
    for x in kept:
        (y,) = call([w, x])
        assert torch.equal(y, x) and not y.requires_grad and x._version == 0
        del y
    assert capturer.copied == 1
