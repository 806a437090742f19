"""Straight-line code inlined after a break: no continuation is called for it, and results are eager mode's."""

from __future__ import annotations

import copy
import gc
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from driver import active, compiled, outcome, same

import framesmith_frames as frames

Step = Callable[[torch.nn.Linear, torch.Tensor], Any]


class Holder:
    """Has methods by the names of a tensor's."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value

    def detach(self) -> torch.Tensor:
        return self.value.sin() + self.value.cos()

    def backward(self) -> torch.Tensor:
        return self.value.exp() * 2


def detached(model, x):
    loss = model(x).sum()
    loss.backward()
    return loss.detach()


def two_detached(model, x):
    one, other = model(x).sum(), model(x + 1).mean()
    (one + other).backward()
    return one.detach(), other.detach()


def detached_result(model, x):
    y = model(x).sum() * 2

    def run():
        print("run")
        y.backward()
        return y

    return run().detach()


def two_passes(model, x):
    one, other = model(x).sum(), model(x).square().mean()
    one.backward(retain_graph=True)
    other.backward()
    return model.weight.grad * 2


def three_passes(model, x):
    one, two, three = model(x).sum(), model(x).square().mean(), model(x + 1).sum()
    one.backward(retain_graph=True)
    two.backward(None, True)
    three.backward()
    return model.weight.grad * 2 + 1


def passes_with_gradients(model, x):
    y = model(x)
    gradient = torch.ones_like(y) * 3
    y.backward(gradient, retain_graph=True)
    y.backward(gradient)
    return model.weight.grad + 1, gradient


def another_name(model, x):
    loss = model(x).sum()
    print("before")
    model.loss = loss
    return loss.detach()


def holders(model, x):
    held = Holder(model(x))
    print("held")
    return held.detach()


def a_backward_of_its_own(model, x):
    held = Holder(model(x))
    print("held")
    held.backward()
    return x * 2


def in_a_block(model, x):
    loss = model(x).sum()
    with torch.no_grad():
        print("in no_grad")
        return loss.detach()


def caught(model, x):
    loss = model(x).sum()
    try:
        loss.backward()
        loss.backward()
    except RuntimeError as error:
        return type(error), loss.detach()
    return None


def through_a_cell(model, x):
    loss = model(x).sum()

    def change():
        nonlocal loss
        print("changed")
        loss = loss * 2

    change()
    return loss.detach()


def of_none(model, x):
    y = model(x)
    print("none")
    return model.nothing.detach(), y


#: program -> how many continuations its calls compile
PROGRAMS: dict[Step, int] = {
    detached: 0,
    two_detached: 0,
    detached_result: 2,  # of its callee: after its print, and before `return y`
    two_passes: 1,
    three_passes: 1,
    passes_with_gradients: 1,
    another_name: 1,
    holders: 0,
    a_backward_of_its_own: 1,
    in_a_block: 1,
    caught: 2,  # on CPython 3.12, where they would compute nothing, none
    through_a_cell: 2,
    of_none: 0,
}


def doubled_and_printed(grad: torch.Tensor) -> torch.Tensor:
    print("hook")
    return grad * 2


def ran(program: Step, run: Step) -> list[Any]:
    """Return the results of three calls, and the gradients after each."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    model.weight.register_hook(doubled_and_printed)  # leaves passes to the engine
    found = []
    for at in range(3):
        x = torch.linspace(-1, 1, 6).reshape(2, 3) * (at + 1)
        found.append((outcome(run, (model, x)), copy.deepcopy(model.weight.grad)))
    return found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_on_the_spot(program: Step) -> None:
    frames.reset()
    wanted = ran(program, program)
    subject = compiled(program)
    for found, expected in zip(ran(program, subject), wanted, strict=True):
        assert same(found[0][:2], expected[0][:2])
        assert same(found[1], expected[1])
    names = {event.code.co_qualname for event in subject.of_kind("entry")}
    count = len([name for name in names if "<resumed at" in name])
    assert count == PROGRAMS[program] or (program is caught and count == 0), names


def test_an_error_in_inlined_code_has_its_line() -> None:
    def fails(x: torch.Tensor) -> Any:
        loss = x.sum()
        loss.backward()
        loss.backward()
        return loss.detach()

    lines = []
    for run in (fails, compiled(fails)):
        with pytest.raises(RuntimeError, match="second time") as info:
            run(torch.ones(3, requires_grad=True).exp())
        [place] = [at for at in traceback.extract_tb(info.value.__traceback__) if at.name == "fails"]
        lines.append((place.lineno, place.line))
    assert lines[0] == lines[1]


def test_inlined_code_keeps_nothing_alive() -> None:
    """Residual code drops references read by inlined code, as the program does of its locals."""
    seen: list[weakref.ref[torch.Tensor]] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        seen.append(weakref.ref(y))
        print("broken")
        return y.detach()

    subject = compiled(step)
    with active(subject.converter):
        for _ in range(3):
            step(torch.ones(3))
    gc.collect()
    assert all(ref() is None for ref in seen)
