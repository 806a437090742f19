"""Assumptions of the compiler that the program does not state: a call that violates one runs eagerly, once.

With `fullgraph=True` it raises EagerNotAllowed with the reason and the line; the program's own errors stay its own.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import framesmith
from framesmith_dynamo import EagerNotAllowed

HERE = "test_assumptions.py"


def nested(x: torch.Tensor) -> Any:
    return min(max(x.sum(), 0), 10.0) + 1


def in_a_branch(x: torch.Tensor) -> Any:
    return max(x.sum(), 0) * 2 if x.shape[0] > 2 else x


def in_a_function(x: torch.Tensor) -> Any:
    def clamp(y: torch.Tensor) -> Any:
        return max(y, 0)

    return [clamp(x.sum()), clamp(x.prod() + 9)]


def changes_first(x: torch.Tensor) -> Any:
    x.add_(1)
    best = max(x.sum(), 0)
    x.mul_(2)
    return best, x


def random_first(x: torch.Tensor) -> Any:
    noise = torch.rand(3)
    return max(x.sum(), 0), noise


def caught(x: torch.Tensor) -> Any:
    try:
        return max(x.sum(), 0) * 2
    except RuntimeError:
        return "caught"


def read_back(x: torch.Tensor) -> Any:
    return isinstance(max(x.sum(), 0), torch.Tensor), x + 1


def masked(x: torch.Tensor) -> Any:
    return x[x > 0] + torch.ones(3)


def masked_twice(x: torch.Tensor) -> Any:
    y = x[x > 0]
    return y * torch.arange(3.0), y - torch.ones(3)


def sliced(x: torch.Tensor) -> Any:
    return x[: x.abs().max().int().item()] + torch.ones(2)


def a_view_or_a_copy(x: torch.Tensor) -> Any:
    y = torch.ones(2, 2).t()[: x.abs().max().int().item()].reshape(-1)
    return y.add_(1)


POSITIVE, NEGATIVE = [1.0, 2.0, 3.0], [-1.0, -2.0, -3.0]

#: Programs, arguments of a call in which the assumption holds, and in which it does not.
PROGRAMS: dict[str, tuple[Callable[..., Any], Sequence[float], Sequence[float]]] = {
    "max": (lambda x: max(x.sum(), 0) * 2, POSITIVE, NEGATIVE),
    "min": (lambda x: min(x.sum(), 0) * 2, NEGATIVE, POSITIVE),
    "the number first": (lambda x: max(0.5, x.sum()) - 1, POSITIVE, NEGATIVE),
    "equal": (lambda x: (max(0, x.sum()), x + 1), POSITIVE, [0.0, 0.0, 0.0]),
    "three": (lambda x: max(x.sum(), 0, 0.5), POSITIVE, NEGATIVE),
    "a list": (lambda x: max([x.sum(), 0]), POSITIVE, NEGATIVE),
    "a generator": (lambda x: max(v for v in (0, x.sum())), POSITIVE, NEGATIVE),
    "a key": (lambda x: max([x.sum(), 0.5], key=lambda v: v * 2), POSITIVE, NEGATIVE),
    "a key that turns": (lambda x: min(x.sum(), 1, key=lambda v: -v), POSITIVE, NEGATIVE),
    "not a number": (lambda x: max(x.sum(), 0) + 1, [float("nan"), 1.0, 1.0], NEGATIVE),
    "nested, the outer one": (nested, POSITIVE, [9.0, 9.0, 9.0]),
    "nested, the inner one": (nested, POSITIVE, NEGATIVE),
    "in a branch": (in_a_branch, POSITIVE, NEGATIVE),
    "in a function": (in_a_function, POSITIVE, NEGATIVE),
    "changes": (changes_first, POSITIVE, NEGATIVE),
    "random numbers": (random_first, POSITIVE, NEGATIVE),
    "caught": (caught, POSITIVE, NEGATIVE),
    "its type": (read_back, POSITIVE, NEGATIVE),
    "integers": (lambda x: max(x.sum().long(), 0) // 2, POSITIVE, NEGATIVE),
    "a mask": (masked, POSITIVE, [-1.0, 5.0, -1.0]),
    "a mask twice": (masked_twice, POSITIVE, [-1.0, 5.0, -1.0]),
    "a slice": (sliced, [2.0, 1.0, 1.0], [1.0, 1.0, 1.0]),
    "a view or a copy": (a_view_or_a_copy, [2.0, 1.0, 1.0], [1.0, 1.0, 1.0]),
}


def outcome(function: Callable[..., Any], values: Sequence[float]) -> tuple[Any, ...]:
    torch.manual_seed(0)
    x = torch.tensor(values)
    return function(x), x, torch.rand(1)


def same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(found, (tuple, list)):
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif isinstance(found, str):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected, equal_nan=True)


def as_it_is(module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
    return module.forward


BACKENDS = {"compiled": "auto", "eager": "eager", "a function": as_it_is}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_in_which_it_is_not_so(name: str, backend: str) -> None:
    framesmith.reset()
    function, holds, fails = PROGRAMS[name]
    run = framesmith.compile(function, backend=BACKENDS[backend])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for values in (holds, fails, holds, fails):
            same(outcome(run, values), outcome(function, values))
    [reported] = [str(one.message) for one in caught if issubclass(one.category, framesmith.FramesmithWarning)]
    assert "as compiled code assumes runs eagerly" in reported and HERE in reported
    stats = framesmith.stats()
    assert (stats["frames_run_once"], stats["frames_failed"], stats["graphs"]) == (2, 0, 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_with_fullgraph(name: str, backend: str) -> None:
    framesmith.reset()
    function, holds, fails = PROGRAMS[name]
    run = framesmith.compile(function, fullgraph=True, backend=BACKENDS[backend])
    same(outcome(run, holds), outcome(function, holds))
    x = torch.tensor(fails)
    with pytest.raises(EagerNotAllowed, match=f"an assumption of its graph does not hold.*{HERE}"):
        run(x)
    torch.testing.assert_close(x, torch.tensor(fails))
    same(outcome(run, holds), outcome(function, holds))


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
def test_gradients(dynamic: bool | None, fullgraph: bool) -> None:
    framesmith.reset()

    def function(x: torch.Tensor) -> Any:
        return max((x * x).sum() - 4, 0.5) * x

    run = framesmith.compile(function, dynamic=dynamic, fullgraph=fullgraph)
    for values in ([1.0, 2.0], [3.0, 1.0, 1.0], [1.0, 0.0], [0.5, 0.5, 0.5]):
        eager, x = (torch.tensor(values, requires_grad=True) for _ in range(2))
        function(eager).sum().backward()
        if fullgraph and sum(v * v for v in values) < 4.5:
            with pytest.raises(EagerNotAllowed):
                run(x)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", framesmith.FramesmithWarning)
            run(x).sum().backward()
        torch.testing.assert_close(x.grad, eager.grad)


def a_check_before(x: torch.Tensor) -> Any:
    total = x.sum().item()
    torch._check(total > 0, lambda: "the program's words")
    return max(x.sum(), 0) * total


def a_check_of_a_size(x: torch.Tensor) -> Any:
    y = x[x > 0]
    torch._check_value(y.shape[0] == 3, lambda: f"{y.shape[0]} are too few")
    return y + torch.ones(3)


def caught_check(x: torch.Tensor) -> Any:
    try:
        total = x.sum().item()
        torch._check(total > 0, lambda: "the program's words")
    except RuntimeError as error:
        return str(error), x - 1
    return max(x.sum(), 0), x + 1


def caught_size(x: torch.Tensor) -> Any:
    try:
        return x[x > 0] + torch.ones(3)
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize(
    "function", [a_check_before, a_check_of_a_size, masked, caught_size], ids=lambda function: function.__name__
)
def test_errors_of_the_program_are_its_own(function: Callable[..., Any], fullgraph: bool, backend: str) -> None:
    framesmith.reset()
    run = framesmith.compile(function, fullgraph=fullgraph, backend=BACKENDS[backend])
    same(run(torch.tensor(POSITIVE)), function(torch.tensor(POSITIVE)))
    fails = torch.tensor([-9.0, 2.0, 3.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if function is caught_size:
            assert run(fails) == function(fails)
            return
        with pytest.raises((RuntimeError, ValueError)) as expected:
            function(fails)
        with pytest.raises(type(expected.value)) as found:
            run(fails)
    assert type(found.value) is type(expected.value) and str(found.value) == str(expected.value)


def test_a_check_that_the_program_handles() -> None:
    run = framesmith.compile(caught_check)
    for values in (POSITIVE, NEGATIVE):
        same(run(torch.tensor(values)), caught_check(torch.tensor(values)))


def test_effects_happen_once() -> None:
    framesmith.reset()
    log: list[str] = []

    def function(x: torch.Tensor, held: list[Any]) -> Any:
        log.append("begins")
        held.append(max(x.sum(), 0))
        log.append("ends")
        return x + 1

    run = framesmith.compile(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", framesmith.FramesmithWarning)
        for values in (POSITIVE, NEGATIVE):
            held: list[Any] = []
            log.clear()
            run(torch.tensor(values), held)
            assert log == ["begins", "ends"] and len(held) == 1
    assert held == [0]


@torch.library.custom_op("assumptions::report", mutates_args=())
def report(x: torch.Tensor) -> None:
    REPORTED.append(x.shape[0])


@report.register_fake
def _(x: torch.Tensor) -> None:
    return None


REPORTED: list[int] = []


def by_factor(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    y = torch.add(x, x.sin(), alpha=factor.item())
    report(x.detach())
    return y * 2


def by_length(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    y = x[: factor.int().item()]
    report(x.detach())
    return y + torch.ones(2)


@pytest.mark.parametrize("function", [by_factor, by_length], ids=lambda function: function.__name__)
def test_effects_of_operators_happen_once(function: Callable[..., Any]) -> None:
    framesmith.reset()
    run = framesmith.compile(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", framesmith.FramesmithWarning)
        for factor in (2.0, 1.0, 2.0, 1.0):
            REPORTED.clear()
            x, eager = (torch.ones(3, requires_grad=True) for _ in range(2))
            run(x, torch.tensor(factor)).sum().backward()
            assert REPORTED == [3]
            function(eager, torch.tensor(factor)).sum().backward()
            torch.testing.assert_close(x.grad, eager.grad)


def test_inputs_of_such_a_call_are_freed_with_it() -> None:
    framesmith.reset()
    run = framesmith.compile(lambda x: max(x.sum(), 0) * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", framesmith.FramesmithWarning)
        for values in (POSITIVE, NEGATIVE):
            run(torch.tensor(values))
        gc.collect()
        gc.disable()
        try:
            x = torch.tensor(NEGATIVE)
            seen = weakref.ref(x)
            run(x)
            del x
            assert seen() is None
        finally:
            gc.enable()


def test_words_like_the_compilers_own_are_the_programs() -> None:
    framesmith.reset()

    def function(x: torch.Tensor) -> Any:
        total = x.sum().item()
        torch._check(total > 0, lambda: "the compiler assumes: much")
        return max(x.sum(), 0) * total

    run = framesmith.compile(function, fullgraph=True)
    run(torch.tensor(POSITIVE))
    with pytest.raises(RuntimeError, match=r"^the compiler assumes: much$"):
        run(torch.tensor(NEGATIVE))
