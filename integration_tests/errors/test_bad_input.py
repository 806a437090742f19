"""Arguments that `compile()` refuses: the kind of error, the reason, and the nearest valid choice."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import framesmith
from framesmith_backends import find_backend


def fine(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def generator_function(x: torch.Tensor):
    yield x


async def coroutine_function(x: torch.Tensor):
    return x


async def async_generator_function(x: torch.Tensor):
    yield x


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (3, "got 3 of type int"),
        ("fine", "of type str"),
        (torch.nn.Linear, "the class Linear: compile its instances or methods"),
    ],
    ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
def test_targets(target: Any, said: str) -> None:
    with pytest.raises(TypeError) as caught:
        framesmith.compile(target)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (generator_function, "it is a generator function: compile the function"),
        (coroutine_function, "it is a coroutine function"),
        (async_generator_function, "it is an async generator function"),
        (functools.partial(generator_function, torch.ones(1)), "it is a generator function"),
    ],
    ids=["generator", "coroutine", "async generator", "partial"],
)
def test_functions_that_are_resumed_run_eagerly(target: Any, said: str) -> None:
    framesmith.reset()
    with pytest.warns(framesmith.FramesmithWarning, match="nothing of it is compiled") as reported:
        compiled = framesmith.compile(target)
    assert len(reported) == 1 and said in str(reported[0].message)
    assert inspect.isgeneratorfunction(compiled) == inspect.isgeneratorfunction(target)
    with pytest.raises(RuntimeError, match=r"fullgraph=True, but .* runs eagerly: it is a"):
        framesmith.compile(target, fullgraph=True)


class Unfinished:
    """A backend without most of the protocol."""

    name = "unfinished"

    def compile(self) -> None: ...

    def __call__(self) -> None: ...

    def __repr__(self) -> str:
        return "Unfinished()"  # part of the case's name, which two processes compare


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"backend": "cpuu"}, ValueError, "unknown backend 'cpuu'; expected one of 'aot_eager', 'auto', 'cpu'"),
        ({"backend": "cpuu"}, ValueError, "did you mean 'cpu'?"),
        ({"backend": "inductor"}, ValueError, "unknown backend 'inductor'"),
        ({"backend": 3}, TypeError, "backend must be a name, a backend object or a callable; got int"),
        ({"backend": Unfinished()}, TypeError, "Unfinished lacks devices, roles, options, lowers, why_not"),
        ({"mode": "max-autotun"}, ValueError, "did you mean 'max-autotune'?"),
        ({"mode": 1}, TypeError, "mode must be a string"),
        ({"options": {"numeric": "strict"}}, ValueError, "unknown option 'numeric'"),
        ({"options": ["numerics"]}, TypeError, "options must be a dict"),
        ({"fullgraph": 1}, TypeError, "fullgraph must be True or False; got 1"),
        ({"strict": "yes"}, TypeError, "strict must be True or False"),
        ({"dynamic": "sometimes"}, TypeError, "dynamic must be True or False"),
        ({"recompile_limit": 0}, ValueError, "recompile_limit must be an int of at least 1; got 0"),
    ],
    ids=str,
)
def test_settings(settings: dict[str, Any], error: type[Exception], said: str) -> None:
    for call in (lambda: framesmith.compile(fine, **settings), lambda: framesmith.compile(**settings)):
        with pytest.raises(error) as caught:
            call()
        assert said in str(caught.value)


def test_an_unknown_keyword_is_refused() -> None:
    with pytest.raises(TypeError, match="full_graph"):
        framesmith.compile(fine, full_graph=True)  # type: ignore[call-arg]


@pytest.mark.parametrize("decorate", [framesmith.compile, framesmith.compile(), framesmith.compile(backend="eager")])
def test_forms_that_are_fine(decorate: Callable[..., Any]) -> None:
    assert torch.equal(decorate(fine)(torch.ones(2)), torch.full((2,), 2.0))
    assert decorate(fine).__name__ == "fine"


def test_bound_methods_partials_and_callable_objects_are_fine() -> None:
    class Scale:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        def half(self, x: torch.Tensor) -> torch.Tensor:
            return x * 0.5

    x = torch.ones(2)
    assert torch.equal(framesmith.compile(Scale())(x), x * 2)
    assert torch.equal(framesmith.compile(Scale().half)(x), x * 0.5)
    assert torch.equal(
        framesmith.compile(functools.partial(torch.nn.functional.leaky_relu, negative_slope=0.5))(-x), -x / 2
    )


@pytest.mark.parametrize("backend", ["auto", "cpu", "eager", lambda gm, inputs: gm.forward])
def test_a_mode_that_the_backend_does_not_take_warns_at_the_users_line(backend: Any) -> None:
    with pytest.warns(framesmith.FramesmithWarning, match="mode='max-autotune' has no effect") as reported:
        compiled = framesmith.compile(fine, backend=backend, mode="max-autotune")
    assert [entry.filename for entry in reported] == [__file__]
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        framesmith.compile(fine, backend=backend, mode="default")


def test_a_mode_is_no_mode_of_graphs_for_another_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_backend("cuda"), "why_not_here", lambda: None, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = framesmith.compile(fine, mode="reduce-overhead")
    with pytest.warns(
        framesmith.FramesmithWarning, match="mode='reduce-overhead' has no effect on some graphs"
    ) as reported:
        for length in (2, 3, 4):
            assert torch.equal(compiled(torch.ones(length)), torch.full((length,), 2.0))
    assert len(reported) == 1
