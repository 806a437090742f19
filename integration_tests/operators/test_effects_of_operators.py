"""Side effects of operators happen once for each call, from the first on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import framesmith

LIB = torch.library.Library("framesmith_effects", "FRAGMENT")
NAMES = (f"noted_{number}" for number in itertools.count())
Log = list[Any]


def defined(
    log: Log, keys: dict[str, Callable[[torch.Tensor], torch.Tensor]], schema: str = "(Tensor x) -> Tensor"
) -> Any:
    """A new operator with these kernels, by dispatch key."""
    name = next(NAMES)
    LIB.define(name + schema)
    for key, kernel in keys.items():
        LIB.impl(name, kernel, key)
    return getattr(torch.ops.framesmith_effects, name)


def noted(log: Log, compute: Callable[..., Any]) -> Callable[..., Any]:
    """`compute`, with a note in the log."""

    def kernel(*args: Any) -> Any:
        log.append("called")
        return compute(*args)

    return kernel


def custom(log: Log, *, fake: bool = True, writes: tuple[str, ...] = ()) -> Any:
    @torch.library.custom_op(f"framesmith_effects::{next(NAMES)}", mutates_args=writes)
    def operator(x: torch.Tensor) -> torch.Tensor:
        log.append(len(log))
        if writes:
            x.add_(1)
        return x.clone()

    if fake:
        operator.register_fake(lambda x: torch.empty_like(x))
    return operator


def twice(op: Any) -> Callable[[torch.Tensor], Any]:
    return lambda x: op(x) + op(x + 1)


def unused(op: Any) -> Callable[[torch.Tensor], Any]:
    def f(x: torch.Tensor) -> Any:
        op(x)
        return x + 1

    return f


def looped(op: Any) -> Callable[[torch.Tensor], Any]:
    def f(x: torch.Tensor) -> Any:
        for _ in range(3):
            x = op(x)
        return x

    return f


def broken(op: Any) -> Callable[[torch.Tensor], Any]:
    def f(x: torch.Tensor) -> Any:
        y = op(x)
        print(end="")
        return op(y * 2)

    return f


def written_within(op: Any) -> Callable[[torch.Tensor], Any]:
    def f(x: torch.Tensor) -> Any:
        y = x.detach() * 2
        op(y)
        return y + 1

    return f


def random(log: Log) -> Any:
    @torch.library.custom_op(f"framesmith_effects::{next(NAMES)}", mutates_args=())
    def operator(x: torch.Tensor) -> torch.Tensor:
        log.append(float(x.sum()))
        return x + torch.rand(x.shape)

    operator.register_fake(lambda x: torch.empty_like(x))
    return lambda x: operator(x) + torch.rand(x.shape)


def for_autograd(log: Log) -> Any:
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            log.append("forward")
            return x.sin()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            log.append("backward")
            return grad * 2

    return defined(log, {"AutogradCPU": lambda x: Function.apply(x), "CPU": torch.sin})


PROGRAMS: dict[str, Callable[[Log], Callable[[torch.Tensor], Any]]] = {
    "custom": lambda log: twice(custom(log)),
    "custom, unused": lambda log: unused(custom(log)),
    "custom, in a loop": lambda log: looped(custom(log)),
    "custom, around a break": lambda log: broken(custom(log)),
    "custom without a fake": lambda log: unused(custom(log, fake=False)),
    "custom, writing": lambda log: written_within(custom(log, writes=("x",))),
    "custom, random": random,
    "kernel": lambda log: twice(defined(log, {"CPU": noted(log, torch.sin)})),
    "kernel and fake": lambda log: twice(defined(log, {"CPU": noted(log, torch.sin), "Meta": torch.empty_like})),
    "for all devices": lambda log: twice(defined(log, {"CompositeExplicitAutograd": noted(log, torch.sin)})),
    "for all devices, and fake": lambda log: twice(
        defined(log, {"CompositeExplicitAutograd": noted(log, torch.sin), "Meta": torch.empty_like})
    ),
    "composite": lambda log: twice(defined(log, {"CompositeImplicitAutograd": noted(log, torch.sin)})),
    "composite, unused": lambda log: unused(defined(log, {"CompositeImplicitAutograd": noted(log, torch.sin)})),
    "composite, around a break": lambda log: broken(defined(log, {"CompositeImplicitAutograd": noted(log, torch.sin)})),
    "for autograd": lambda log: twice(for_autograd(log)),
    "view": lambda log: twice(
        defined(
            log, {"CPU": noted(log, lambda x: x.view(-1)), "Meta": lambda x: x.view(-1)}, "(Tensor(a) x) -> Tensor(a)"
        )
    ),
}


def outcomes(make: Callable[[Log], Callable[..., Any]], compiler: Callable[..., Any], grad: bool) -> list[Any]:
    """Return the results of three calls, and the log after each."""
    torch.manual_seed(0)
    log: Log = []
    program = compiler(make(log))
    found: list[Any] = []
    for _ in range(3):
        x = torch.linspace(-1, 1, 4).requires_grad_(grad)
        result = program(x)
        found.append((result.detach(), [*log]))
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_run_once_for_each_call(name: str, grad: bool) -> None:
    eagers = outcomes(PROGRAMS[name], lambda fn: fn, grad)
    framesmith.reset()
    ours = outcomes(PROGRAMS[name], lambda fn: framesmith.compile(fn, strict=True), grad)
    for (value, log), (expected, wanted) in zip(ours, eagers, strict=True):
        torch.testing.assert_close(value, expected)
        assert log == wanted


def test_a_function_for_autograd_runs_in_both_directions() -> None:
    log: Log = []
    operator = for_autograd(log)
    compiled = framesmith.compile(lambda x: operator(x.cos()) * 2, strict=True)
    for number in range(1, 4):
        x = torch.ones(3, requires_grad=True)
        compiled(x).sum().backward()
        assert log == ["forward", "backward"] * number
        torch.testing.assert_close(x.grad, torch.ones(3).sin() * -4)


def said(x: torch.Tensor) -> Any:
    torch.ops.aten._print("first")
    for number in range(2):
        torch.ops.aten._print(f"and {number}")
    return x + 1


def said_around_a_break(x: torch.Tensor) -> Any:
    torch.ops.aten._print("before")
    y = x * 2
    print("between", flush=True)
    torch.ops.aten._print("behind")
    return y


def said_before_an_error(x: torch.Tensor) -> Any:
    torch.ops.aten._print("before")
    return x[9]


def said_without_gradients(x: torch.Tensor) -> Any:
    with torch.no_grad():
        torch.ops.aten._print("inside")
    return x.sin()


@pytest.mark.parametrize("program", [said, said_around_a_break, said_before_an_error, said_without_gradients])
def test_what_operators_print(program: Callable[..., Any], capfd: pytest.CaptureFixture[str]) -> None:
    def texts(fn: Callable[..., Any]) -> list[str]:
        found = []
        for _ in range(3):
            try:
                fn(torch.ones(4))
            except IndexError as error:
                print(error, flush=True)
            found.append(capfd.readouterr().out)
        return found

    framesmith.reset()
    assert texts(framesmith.compile(program, strict=True)) == texts(program)


CHECKS: dict[str, Callable[[torch.Tensor], Any]] = {
    "data": lambda x: torch.ops.aten._assert_scalar((x.sum() > 0).item(), "not above 0"),
    "size": lambda x: torch.ops.aten._assert_scalar(x.shape[0] < 4, "too long"),
    "size, overload": lambda x: torch.ops.aten._assert_scalar.default(x.shape[0] < 4, "too long"),
    "data on the device": lambda x: torch._assert_async((x > 0).all(), "not above 0"),
}


@pytest.mark.parametrize("name", CHECKS)
def test_checks(name: str) -> None:
    def checked(x: torch.Tensor) -> Any:
        CHECKS[name](x)
        return x + 1

    def outcome(fn: Callable[..., Any], x: torch.Tensor) -> Any:
        try:
            return fn(x).tolist()
        except RuntimeError as error:
            return type(error), str(error)

    framesmith.reset()
    compiled = framesmith.compile(checked, strict=True)
    for x in (torch.ones(3), -torch.ones(3), torch.ones(4), torch.ones(5), torch.ones(2), -torch.ones(4)):
        assert outcome(compiled, x) == outcome(checked, x)
