"""Frames called within torch.func transforms, saved-tensor hooks and modes run as plain Python."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import framesmith_frames as frames
from framesmith_dynamo import FrameConverter
from framesmith_dynamo.admission.surroundings import why_not_now

X = torch.tensor([1.0, 2.0])


class FunctionMode(TorchFunctionMode):
    """Changes nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    """Changes nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def hooks() -> contextlib.AbstractContextManager[Any]:
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)


@pytest.mark.parametrize(
    ("make", "said"),
    [(FunctionMode, "function mode"), (DispatchMode, "dispatch mode"), (hooks, "saved-tensor hooks")],
)
def test_contexts(make: Callable[[], contextlib.AbstractContextManager[Any]], said: str) -> None:
    assert why_not_now() is None
    with make():
        assert said in (why_not_now() or "")
    assert why_not_now() is None


def test_transforms() -> None:
    seen: list[str | None] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        seen.append(why_not_now())
        return x.sum()

    torch.func.vmap(f)(torch.ones(2, 3))
    torch.func.grad(f)(torch.ones(3))
    assert all(reason is not None and "torch.func" in reason for reason in seen) and len(seen) == 2


def test_a_default_device_is_fine() -> None:
    with torch.device("cpu"):
        assert why_not_now() is None


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
