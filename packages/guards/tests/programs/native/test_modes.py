"""Under torch-function modes and subclasses: native checks stay native, and run none of their Python code."""

import dataclasses

import pytest
import sympy
import torch

from framesmith_guards import (
    AttrSource,
    Guard,
    ItemSource,
    LocalSource,
    ShapeEnvSource,
    ShapeExpr,
    TensorPropertySource,
    TensorSpec,
    compile_guards,
    state_guards,
)
from framesmith_guards.programs.native.probing import extension

pytestmark = pytest.mark.skipif(extension()[0] is None, reason=str(extension()[1]))

X, Y = LocalSource("x"), LocalSource("y")


def f(x, y=None):
    return x


class Recorder(torch.overrides.TorchFunctionMode):
    """Notes what runs through it."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class Loud(torch.Tensor):
    """A subclass whose Python code must not run."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"user code ran: {func}")


def reading_guards(x):
    """Guards that read a tensor in every way, natively and through Python's protocols."""
    a = sympy.Symbol("a", integer=True)
    return [
        Guard(X, "TENSOR_MATCH", dataclasses.replace(TensorSpec.of(x), sizes=(None, *x.shape[1:]))),
        Guard(X, "LENGTH", len(x)),
        Guard(X, "HASATTR", "grad"),
        Guard(X, "NO_HASATTR", "nothing"),
        Guard(X, "DISPATCH_KEYS", x),
        Guard(AttrSource(X, "grad"), "NONE_MATCH"),
        Guard(AttrSource(X, "requires_grad"), "BOOL_MATCH", x.requires_grad),
        Guard(AttrSource(AttrSource(X, "data"), "dtype"), "EQUALS_MATCH", torch.float32),
        Guard(ItemSource(AttrSource(X, "shape"), 1), "EQUALS_MATCH", 3),
        Guard(ShapeEnvSource(), "SHAPE", ShapeExpr.of(sympy.Ge(a, 2), {a: TensorPropertySource(X, "size", 0)})),
        Guard(ShapeEnvSource(), "SHAPE", ShapeExpr.of(sympy.Ge(a, 2), {a: TensorPropertySource(Y, "size", 0)})),
        Guard(X, "NO_OVERLAP", Y),
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, 3),
        lambda: torch.ones(4, 3)[1:3],
        lambda: (torch.ones(2, 3, requires_grad=True) * 2).detach(),
        lambda: torch.nn.Parameter(torch.ones(2, 3)),
    ],
)
def test_no_mode_sees_a_check(make):
    x, y = make(), torch.ones(2, 3, dtype=torch.float64)
    others = [(x.detach().double(), y), (x, y[:1]), (3, y), (x, x)]
    program = compile_guards(reading_guards(x), ("x", "y"), native=True)
    with Recorder() as mode:
        for _ in range(3):
            assert program((x, y), f) and program.check((x, y), f)
        assert program.explain((x, y), f) is None
        assert not any(program(args, f) or program.explain(args, f) is None for args in others)
    assert mode.seen == []


def test_no_subclass_sees_a_check():
    x, y = torch.ones(2, 3).as_subclass(Loud), torch.ones(2, 3).as_subclass(Loud)
    with torch._C.DisableTorchFunction():
        guards = reading_guards(x)
    program = compile_guards([*state_guards(), *guards], ("x", "y"), native=True)
    for _ in range(3):
        assert program((x, y), f) and program.check((x, y), f) and program.explain((x, y), f) is None
    with torch._C.DisableTorchFunction():
        plain = torch.ones(2, 3)
    assert not program((plain, y), f)


@pytest.fixture
def cpu_by_default():
    torch.set_default_device("cpu")
    yield
    torch.set_default_device(None)


def test_a_default_device_stays_native(cpu_by_default):
    x, y = torch.ones(2), torch.ones(3)
    guards = [*state_guards(), Guard(X, "TENSOR_MATCH", x), Guard(Y, "TENSOR_MATCH", y)]
    program = compile_guards(guards, ("x", "y"), native=True)
    for _ in range(3):
        assert program((x, y), f)
    with torch.device("meta"):
        assert not program((x, y), f)
    with Recorder():
        assert not program((x, y), f)
    torch.set_default_device("meta")
    assert not program((x, y), f)
    torch.set_default_device(None)
    assert not program((x, y), f)
    torch.set_default_device("cpu")
    assert program((x, y), f) and not program((y, x), f)


def test_several_modes_are_compared_in_full():
    with Recorder(), torch.device("meta"):
        program = compile_guards(state_guards(), ("x",), native=True)
        assert program((1,), f) and program((1,), f)
    with torch.device("meta"):
        assert not program((1,), f)
        with Recorder():
            assert not program((1,), f)
    with Recorder(), torch.device("meta"):
        assert program((1,), f)
    with Recorder(), torch.device("cpu"):
        assert not program((1,), f)


def test_an_error_under_the_shield_is_a_miss_and_lifts_it():
    program = compile_guards(
        [Guard(X, "TENSOR_MATCH", torch.ones(2)), Guard(AttrSource(X, "nothing"), "NONE_MATCH")], ("x",), native=True
    )
    x = torch.ones(2)
    assert not program((x,), f)
    with Recorder() as mode:
        assert not program((x,), f)
        torch.add(x, x)
    assert mode.seen == [torch.add]
