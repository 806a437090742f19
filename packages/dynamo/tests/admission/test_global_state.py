"""Frames called within torch.func transforms, saved-tensor hooks and modes run eagerly."""

import contextlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import framesmith_frames as frames
from framesmith_dynamo import CUDA_GRAPH_CAPTURED, FrameConverter
from framesmith_dynamo.admission.global_state import why_unsupported_state

X = torch.tensor([1.0, 2.0])


class FunctionMode(TorchFunctionMode):
    """Changes nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    """Changes nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("make", "said"),
    [(FunctionMode, "function mode"), (DispatchMode, "dispatch mode")],
)
def test_contexts(make: Callable[[], contextlib.AbstractContextManager[Any]], said: str) -> None:
    assert why_unsupported_state() is None
    with make():
        assert said in (why_unsupported_state() or "")
    assert why_unsupported_state() is None


def test_saved_tensor_hooks() -> None:
    seen: list[str | None] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        seen.append(why_unsupported_state())
        return x.sin().sin()

    x = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        f(x)
    with torch.autograd.graph.save_on_cpu():
        f(x)
    assert seen == [None, None]
    torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False, early_stop=False).sum().backward()
    assert len(seen) == 4
    assert all("an eager checkpoint is running" in (reason or "") for reason in seen[2:])


def test_transforms() -> None:
    seen: list[str | None] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        seen.append(why_unsupported_state())
        return x.sum()

    torch.func.vmap(f)(torch.ones(2, 3))
    torch.func.grad(f)(torch.ones(3))
    assert all(reason is not None and "torch.func" in reason for reason in seen) and len(seen) == 2


def test_a_default_device_is_fine() -> None:
    with torch.device("cpu"):
        assert why_unsupported_state() is None


def test_while_a_cuda_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed() -> bool:
        raise RuntimeError("CUDA error: the device has failed")

    def capturing() -> bool:
        return True

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", capturing)
    assert why_unsupported_state() is None
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert why_unsupported_state() == CUDA_GRAPH_CAPTURED
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", failed)
    assert why_unsupported_state() is None


def test_forward_mode_differentiation() -> None:
    def f(x: Any) -> Any:
        return (x * x).sin()

    entries = FrameConverter(lambda module, inputs: module.forward)
    with frames.activated(entries):
        for dual in (False, True, False, True):
            expected = torch.sin(X * X)
            if not dual:
                assert torch.equal(f(X), expected)
                continue
            with forward_ad.dual_level():
                result = forward_ad.unpack_dual(f(forward_ad.make_dual(X, torch.ones(2))))
            assert torch.equal(result.primal, expected)
            assert torch.equal(result.tangent, 2 * X * torch.cos(X * X))


def test_tracing_by_jit_sees_every_operation_before_and_after_a_compile() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).sin()

    with frames.activated(FrameConverter(lambda module, inputs: module.forward)):
        for _ in range(2):
            traced = torch.jit.trace(f, (X,))
            assert "aten::sin" in str(traced.graph)
            assert torch.equal(traced(X + 1), torch.sin(X + 2))
            f(X)


class Helping(TorchDispatchMode):
    """Calls a helper in each handler."""

    def __init__(self, helper: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.helper = helper
        self.said: list[str | None] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.said.append(why_unsupported_state())
        return self.helper(func(*args, **(kwargs or {})))


def test_what_a_dispatch_handler_calls() -> None:
    def helper(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).sin()

    for warm in (False, True):
        with frames.activated(FrameConverter(lambda module, inputs: module.forward)):
            if warm:
                helper(X), f(X)
            with Helping(helper) as mode:
                found = f(X)
        assert torch.equal(found, helper(torch.sin(helper(X + 1))))
        assert [reason is not None and "__torch_dispatch__" in reason for reason in mode.said] == [True, True]


@pytest.mark.parametrize("room", [30, 60, 100])
def test_near_the_recursion_limit(room: int) -> None:
    def f(x: Any, log: list[Any]) -> Any:
        log.append(x)
        print(end="")
        return x.sin() + 1

    def call() -> Any:
        with frames.activated(converter):
            return f(X, log)

    def descend(calls: int) -> Any:
        return descend(calls - 1) if calls else call()

    log: list[Any] = []
    events: list[Any] = []
    converter = FrameConverter(lambda module, inputs: module.forward, on_event=events.append, strict=True)
    result = descend(sys.getrecursionlimit() - len(inspect.stack(0)) - room)
    assert torch.equal(result, X.sin() + 1) and len(log) == 1
    assert {event.kind for event in events} == {"run-once"} and "recursion limit" in events[0].detail
    assert torch.equal(call(), result)
    assert [event.kind for event in events].count("entry") == 2


def test_later_calls_in_the_same_state_are_not_asked_about() -> None:
    """The function is compiled outside of the transform, before and after, as if it had not been called inside."""
    asked: list[str] = []

    class Asking(FrameConverter):
        def __call__(self, info: frames.FrameInfo) -> Any:
            asked.append(info.code.co_name)
            return super().__call__(info)

    def inner(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    graphs: list[Any] = []
    compiled = frames.CompiledFunction(inner, Asking(lambda module, inputs: graphs.append(module) or module.forward))
    for run in (
        lambda: torch.func.grad(lambda x: compiled(x).sum())(X),
        lambda: torch.vmap(compiled)(torch.ones(2, 2)),
        lambda: torch.utils.checkpoint.checkpoint(compiled, X.clone().requires_grad_(), use_reentrant=False),
        lambda: compiled(X),
    ):
        expected = run()
        asked.clear()
        for _ in range(3):
            torch.testing.assert_close(run(), expected)
        assert asked == []
    assert len(graphs) == 1


def test_functions_called_by_eager_transforms_are_not_offered() -> None:
    seen: list[str] = []

    class Noting(FrameConverter):
        def __call__(self, info: frames.FrameInfo) -> Any:
            seen.append(info.code.co_name)
            return super().__call__(info)

    def mapped(x: torch.Tensor) -> torch.Tensor:
        return x.sin().sum()

    with frames.activated(Noting(lambda module, inputs: module.forward)):
        torch.vmap(mapped)(torch.ones(2, 3))
        torch.func.grad(mapped)(torch.ones(3))
    assert "mapped" not in seen


def test_fullgraph_is_asked_about_each_call() -> None:
    converter = FrameConverter(lambda module, inputs: module.forward, fullgraph=True)
    said: list[str] = []
    converter.on_event = lambda event: said.append(event.kind)
    subject = frames.CompiledFunction(lambda x: x.sin(), converter)
    for _ in range(2):
        torch.vmap(subject)(torch.ones(2, 2))
    assert said == ["run-once", "run-once"]
