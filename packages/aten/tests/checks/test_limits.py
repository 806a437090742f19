"""Symbolic numbers are guarded to be in ranges that kernels accept, found by probes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._guards
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from framesmith_aten.recording import KernelRefuses, OperatorLog

aten = torch.ops.aten

#: An operator's call with a number; a number that is there; others that its kernel takes; others that it refuses.
Case = tuple[Callable[[Any], Any], Any, list[Any], list[Any]]


def ones(dtype: torch.dtype) -> torch.Tensor:
    return torch.ones(3, dtype=dtype)


CASES: dict[str, Case] = {
    "int8": (lambda n: aten.fill_.Scalar(ones(torch.int8), n), 5, [127, -128, 0, 1], [128, -129, 2**31 - 1]),
    "uint8": (lambda n: aten.full.default([3], n, dtype=torch.uint8), 5, [255, -255], [256, -256]),
    "half": (lambda n: aten.full.default([3], n, dtype=torch.float16), 5, [65504, -65504], [65505, 10**6]),
    "half of a float": (lambda n: aten.full.default([3], n, dtype=torch.float16), 0.5, [-6e4, 1e-9], [1e5, -1e300]),
    "single": (lambda n: aten.clamp.default(ones(torch.float32), n), 0.5, [-3e38, 3e38], [4e38, -1e300]),
    "double": (lambda n: aten.clamp.default(ones(torch.float64), n), 0.5, [-3e38, 1e300], []),
    "long of a float": (lambda n: aten.full.default([3], n, dtype=torch.int64), 0.5, [1e18, -1e18], [1e19, -1e19]),
    "a wrapped number": (lambda n: aten.mul.Tensor(ones(torch.int8), n), 5, [300, -(2**31) + 1], []),
    "not zero": (lambda n: aten.celu.default(ones(torch.float32), n), 0.5, [1.5, 100.0], [0.0]),
    "not negative": (lambda n: aten.softshrink.default(ones(torch.float32), n), 0.5, [1.5, 3e38], [-0.5]),
}


class Place(torch._guards.Source):
    """The source of the number."""

    @property
    def _name_template(self) -> str:
        return "n"


def checked(call: Callable[[Any], Any], present: Any) -> Callable[[Any], bool]:
    """Whether a number is one for which what a trace of the call relies on holds."""
    env = ShapeEnv()
    source = Place()
    symbol = env.create_unspecified_symbol(present, source, DimDynamic.DYNAMIC)
    make = env.create_symintnode if type(present) is int else env.create_symfloatnode
    with FakeTensorMode(shape_env=env, allow_non_fake_inputs=True), OperatorLog():
        call(make(symbol, hint=present, source=source))
    conditions = [guard.expr for guard in env.guards]
    return lambda n: all(bool(condition.subs(symbol, n)) for condition in conditions)


@pytest.mark.parametrize("name", CASES)
def test_what_is_taken_is_what_the_kernel_takes(name: str) -> None:
    call, present, taken, refused = CASES[name]
    check = checked(call, present)
    for number in (present, *taken):
        call(number)
        assert check(number), number
    for number in refused:
        with pytest.raises(RuntimeError):
            call(number)
        assert not check(number), number


def test_an_int_that_has_more_than_64_bits() -> None:
    def call(n: Any) -> Any:
        return aten.add.Tensor(ones(torch.float32), n * n * n)

    check = checked(call, 5)
    assert check(2**20) and not check(2**22) and not check(-(2**22))


def test_what_the_kernel_refuses_at_present_is_refused() -> None:
    with pytest.raises(KernelRefuses, match="overflow"):
        checked(lambda n: aten.fill_.Scalar(ones(torch.int8), n), 300)


def test_sizes_and_options_are_not_asked_about() -> None:
    check = checked(lambda n: aten.slice.Tensor(torch.ones(40), 0, 0, n), 5)
    assert check(30) and check(1)
