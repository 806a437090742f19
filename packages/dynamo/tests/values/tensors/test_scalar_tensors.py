"""Sizes and counts in 0-d tensors, and `min` and `max` of a tensor and a number, in one graph."""

import pytest
import torch
from driver import compiled, same

import framesmith_frames as frames

TABLE = torch.arange(20.0)
SIZES = [torch.arange(float(n)) for n in (3, 4, 5, 6, 7)]
SCALARS = [torch.tensor(value) for value in (0.3, -0.5, 2.0, 0.0, 1.0, float("nan"))]


def size(x):
    return torch.tensor(x.shape[0])


def written_to(x):
    held = size(x)
    held += 2
    return TABLE[:held].sum() + x


def written_to_in_a_list(x):
    held = size(x)
    torch._foreach_add_([held], 2)
    return TABLE[:held].sum() + x


def counted(x):
    held = x.new_ones((), dtype=torch.int64)
    held.zero_()
    for _ in range(3):
        held.add_(2).sub_(1)
    held.mul_(2)
    return x * held.item() + TABLE[: held.fill_(5)].sum()


def written_to_by_data(x):
    held = size(x)
    held.data.add_(2)
    return TABLE[:held].sum() + x


def written_to_by_a_view(x):
    held = size(x)
    held.view(1)[0] = 2
    return TABLE[:held].sum() + x


def stored(x):
    y = x.clone()
    y[: size(x) - 1] = 0
    return y


IN_ONE_GRAPH = {
    "a slice": lambda x: TABLE[6 - size(x) : 6 + size(x)].sum() + x,
    "two of them": lambda x: TABLE[: size(x) - torch.tensor(2)].sum() + x,
    "item": lambda x: x * size(x).item() + int(size(x) * 2 - 1),
    "a branch": lambda x: x + 1 if size(x) > 4 else x - 1,
    "divisions": lambda x: TABLE[: size(x) // 2].sum() + x + (size(x) % 3).item(),
    "negative": lambda x: TABLE[-size(x) :].sum() + x,
    "a list": lambda x: x + [1, 2, 3, 4, 5, 6, 7, 8][size(x)],
    "a range": lambda x: x + sum(range(size(x))),
    "an item stored": stored,
    "returned": lambda x: (size(x) + 1, x + 1),
    "written in place": written_to,
    "set and counted": counted,
    "a constant": lambda x: x * torch.tensor(3).item() + TABLE[: torch.tensor(3)].sum(),
    "beyond 64 bits": lambda x: x + float((torch.tensor(2**62) * 2).item() < 0),
}
WRITTEN = {
    "in a list": written_to_in_a_list,
    "by way of data": written_to_by_data,
    "by way of a view": written_to_by_a_view,
}


@pytest.mark.parametrize("name", [*IN_ONE_GRAPH, *WRITTEN])
def test_sizes_in_tensors(name):
    frames.reset()
    function = {**IN_ONE_GRAPH, **WRITTEN}[name]
    fn = compiled(function)
    for x in SIZES:
        assert same(fn(x), function(x))
    assert bool(fn.of_kind("break")) is (name in WRITTEN)


def with_effects(t):
    t = t.clone()
    t.add_(1)
    best = max(t, 0.0)
    return best + 1, t


CHOICES = {
    "clamped": lambda t: min(max(t, 0), 1) * 2,
    "the number first": lambda t: max(0.0, t) + 1,
    "three": lambda t: max(0.0, t, 0.5) + 1,
    "a key": lambda t: max([t, 0.5], key=lambda v: v * 2),
    "the tensor itself": lambda t: max(t, 0) is t,
    "returned": lambda t: min(t, 0.7),
    "effects": with_effects,
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_tensor_and_a_number(name):
    frames.reset()
    function, seen = CHOICES[name], compiled(CHOICES[name])
    for t in SCALARS * 2:
        assert same(seen(t.clone()), function(t.clone()))
    assert not seen.of_kind("break") and len(seen.of_kind("entry")) == 1


def test_gradients_are_those_of_the_tensor():
    frames.reset()
    fn = compiled(lambda t: max(t * 2, 0.1) * 3)
    t = torch.tensor(1.0, requires_grad=True)
    fn(t).backward()
    assert t.grad == 6 and fn(torch.tensor(-1.0)) == pytest.approx(0.3)


def test_two_tensors_break():
    fn = compiled(lambda t: max(t, t * 2))
    assert fn(torch.tensor(2.0)) == 4 and fn.of_kind("break")


def test_the_item_of_an_input_that_shares_memory_with_another_is_read():
    def count(one, other):
        one.zero_()
        other.add_(5)
        return one.item() + other.sum()

    def arguments(shared):
        base = torch.tensor([4, 4])
        return base[0], base[0 if shared else 1 :][:1]

    for order in ((False, True, False), (True, False, True)):
        frames.reset()
        fn = compiled(count)
        for shared in order:
            assert same(fn(*arguments(shared)), count(*arguments(shared)))
