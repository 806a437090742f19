"""Frames of these packages, of torch's compiler and of what either generates are never compiled, whoever calls them."""

from __future__ import annotations

import collections
import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import framesmith
import framesmith.session
from framesmith_dynamo import FrameEvent
from framesmith_frames import FrameInfo
from integration_tests.python import programs_beside

#: Modules whose frames are never compiled, by the names of their globals' modules.
OTHERS = (
    "framesmith",
    "torch._",
    "torch.fx",
    "torch.autograd",
    "torch.optim",
    "torch.utils",
    "torch.export",
    "torch.cuda",
)


class Detector:
    """Return the functions compiled or broken since the last reset, with the module of each."""

    def __init__(self) -> None:
        self.modules: dict[int, str] = {}
        self.events: list[FrameEvent] = []
        #: Prefixes of the names of generated files that are the user's.
        self.of_the_user: tuple[str, ...] = ()

    def met(self, frame: FrameInfo) -> None:
        self.modules[id(frame.code)] = str(frame.function.__globals__.get("__name__", ""))

    @property
    def foreign(self) -> list[str]:
        """Return the events of code that is not the user's."""
        kinds = {"entry", "break", "graph", "recompile", "run-once", "error"}
        return [str(event) for event in self.events if event.kind in kinds and self._is_foreign(event)]

    def _is_foreign(self, event: FrameEvent) -> bool:
        module, file = self.modules[id(event.code)], event.code.co_filename
        if file.startswith(self.of_the_user):
            return False
        return module.startswith(OTHERS) or (file.startswith("<") and file != "<framesmith.compile>")


@pytest.fixture
def detector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Detector]:
    found = Detector()
    asked = framesmith.session.Session.__call__

    def call(self: framesmith.session.Session, frame: FrameInfo) -> Any:
        found.met(frame)
        return asked(self, frame)

    monkeypatch.setattr(framesmith.session.Session, "__call__", call)
    monkeypatch.setattr(framesmith.session, "log_event", lambda event, **more: found.events.append(event))
    framesmith.reset()
    yield found
    framesmith.reset()


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 1))


X = torch.linspace(-2, 2, 8).reshape(2, 4)


def backward_inside(compile: Callable[..., Any]) -> Any:
    model = mlp()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    run = compile(step)
    return [run(X) for _ in range(3)], [p.grad for p in model.parameters()]


def module_made_inside(compile: Callable[..., Any]) -> Any:
    torch.compile(lambda x: x + 1, backend="eager")(X)
    return compile(lambda x: nn.SiLU()(x) + 1)(X)


def module_copied_inside(compile: Callable[..., Any]) -> Any:
    torch.compile(lambda x: x + 1, backend="eager")(X)
    model = mlp()
    return compile(lambda x: copy.deepcopy(model)(x))(X)


@dataclasses.dataclass
class Outcome:
    value: torch.Tensor
    scale: float = 2.0

    def __post_init__(self) -> None:
        self.value = self.value * self.scale


def dataclass_behind_a_break(compile: Callable[..., Any]) -> Any:
    def run(x: torch.Tensor) -> Any:
        print(end="")
        made = Outcome(x + 1)
        print(end="")
        return made.value, made == made

    return [compile(run)(X) for _ in range(2)]


Pair = collections.namedtuple("Pair", "one other")


def named_tuple_behind_a_break(compile: Callable[..., Any]) -> Any:
    def run(x: torch.Tensor) -> Any:
        print(end="")
        made = Pair(x + 1, x)
        print(end="")
        return made.one, made._replace(one=x)

    return compile(run)(X)


def cond(compile: Callable[..., Any]) -> Any:
    return compile(lambda x: torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,)))(X + 3)


PROGRAMS = [
    cond,
    backward_inside,
    module_made_inside,
    module_copied_inside,
    dataclass_behind_a_break,
    named_tuple_behind_a_break,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_nothing_foreign_is_compiled(program: Callable[..., Any], detector: Detector) -> None:
    expected = program(lambda function: function)
    framesmith.reset()
    detector.events.clear()
    torch.testing.assert_close(program(framesmith.compile), expected, rtol=1e-4, atol=1e-5)
    assert any(event.kind == "graph" for event in detector.events)
    assert not detector.foreign


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", programs_beside.PROGRAMS)
def test_nothing_foreign_is_compiled_beside_it(name: str, detector: Detector) -> None:
    program = programs_beside.PROGRAMS[name]
    if name == "torch.export":
        detector.of_the_user = ("<eval_with_key>", "<string>")  # the program exported, and the checks in front of it
    expected = program(lambda function: function)
    framesmith.reset()
    detector.events.clear()
    torch.testing.assert_close(program(framesmith.compile), expected, rtol=1e-4, atol=1e-5)
    assert any(event.kind == "graph" for event in detector.events)
    assert not detector.foreign
    assert not [event for event in detector.events if event.kind == "error"]
