"""Attributes that a program sets and deletes on tensors: one graph, and eager mode's tensors, call after call."""

from __future__ import annotations

import pytest
import torch
from driver import compiled, same

import framesmith_frames as frames


class Holder:
    """Holds a tensor."""


def mark(x, w):
    w.mark = x.shape[0]
    return x * w.mark


def mark_by_another_name(x, w):
    holder = Holder()
    holder.w = w
    holder.w.mark = x + 1
    return w.mark * 2


def unmark(x, w):
    w.mark = 1
    if hasattr(w, "old"):
        del w.old
    else:
        w.old = 2
    del w.mark
    return x * 2


def mark_a_result(x, w):
    y = x * w
    y.made_of = (x, w)
    return y


def count(x, w):
    w.calls = getattr(w, "calls", 0) + 1
    return x * 2


def set_grad(x, w):
    w.grad = w.detach() * 2
    w.grad.add_(1)
    return x * 2


def drop_grad(x, w):
    old = w.grad
    w.grad = None
    return x * 2, old


def set_and_read_grad(x, w):
    w.grad = torch.ones_like(w)
    del w.grad
    return x * 2, w.grad


def flags_that_stay(x, w):
    w.requires_grad_(w.requires_grad)
    w.requires_grad = w.requires_grad
    return x * w


def state(w):
    return {
        name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in vars(w).items()
    }, None if w.grad is None else w.grad.tolist()


@pytest.mark.parametrize(
    "function",
    [
        mark, mark_by_another_name, unmark, mark_a_result, count, set_grad, drop_grad, set_and_read_grad,
        flags_that_stay,
    ],
)  # fmt: skip
@pytest.mark.parametrize("needs_grad", [True, False])
def test_one_graph(function, needs_grad: bool) -> None:
    worlds = [torch.ones(2, requires_grad=needs_grad) for _ in range(2)]
    for w in worlds:
        w.grad = torch.full((2,), 7.0)
    subject = compiled(function)
    for n in range(3):
        x = torch.arange(2.0) + n
        expected, got = function(x, worlds[0]), subject(x, worlds[1])
        torch.testing.assert_close(got, expected)
        assert state(worlds[0]) == state(worlds[1])
    assert not subject.of_kind("break")


def test_results_have_their_attributes() -> None:
    x, w = torch.ones(2), torch.ones(2)
    y = compiled(mark_a_result)(x, w)
    assert y.made_of[0] is x
    assert y.made_of[1] is w


def test_a_deleted_attribute_is_missing() -> None:
    def f(x):
        x.mark = 1
        del x.mark
        try:
            return x.mark
        except AttributeError as error:
            return x + 1, str(error)

    subject = compiled(f)
    assert subject(torch.ones(1))[1] == "'Tensor' object has no attribute 'mark'"
    x = torch.ones(1)
    x.mark = 2
    subject(x)
    assert not hasattr(x, "mark")
    assert not subject.of_kind("break")


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("tensor-autograd-state", lambda x: setattr(x, "requires_grad", True)),
        ("tensor-autograd-state", lambda x: x.requires_grad_()),
        ("tensor-autograd-state", lambda x: setattr(x, "data", x.double())),
        ("tensor-autograd-state", lambda x: setattr(x, "grad", torch.ones(1, dtype=x.dtype))),
        ("tensor-attribute", lambda x: setattr(x, "sum", 1)),
        ("new-leaf", lambda x: torch.vmap(lambda one: torch.ones(1, requires_grad=True) * one)(x)),
    ],
)
def test_what_breaks(kind: str, function) -> None:
    subject = compiled(lambda x: (x + 1, function(x)))
    try:
        subject(torch.ones(3))
    except RuntimeError as error:
        assert "assign a gradient" in str(error)
    assert kind in {event.broken.kind.id for event in subject.of_kind("break") if event.broken is not None}


def test_a_hidden_method_is_the_program_s_own() -> None:
    x = torch.ones(3)
    x.sum = lambda: 5
    subject = compiled(lambda x: (x + 1, x.sum()))
    assert subject(x)[1] == 5


def stores_by_dictionary(x, entries, owner):
    entries["there"] = 2
    return x + owner.there


def stores_by_attribute(x, entries, owner):
    owner.there = 3
    return x + len(entries), sorted(entries)


def stores_beside_what_is_read(x, entries, owner):
    old = owner.old
    entries["old"] = old + 4
    return x + owner.old + old, vars(owner)["old"]


def takes_from_dictionary(x, entries, owner):
    entries.pop("old")
    return x + 1, hasattr(owner, "old")


OWNERS = {
    "tensor": lambda: torch.ones(2),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "function": lambda: lambda: None,
}


@pytest.mark.parametrize("make", OWNERS.values(), ids=OWNERS.keys())
@pytest.mark.parametrize(
    "program", [stores_by_dictionary, stores_by_attribute, stores_beside_what_is_read, takes_from_dictionary]
)
def test_a_dictionary_of_attributes_met_by_itself(program, make):
    """It is another dictionary first, from the second call on that of the tensor or function."""
    frames.reset()
    subject = compiled(program)
    for own in (False, True, True, False):
        seen = []
        for run in (program, subject):
            owner = make()
            owner.old, owner.there = 1, 0
            entries = owner.__dict__ if own else {"old": 7}
            seen.append((run(torch.ones(2), entries, owner), dict(entries), dict(owner.__dict__)))
        assert same(*seen)
    assert not subject.of_kind("error")
