"""Run a program compiled and eagerly, each in a world built from the same seed, and compare all a user could see.

Values, dtypes, shapes, strides, shared memory, identity, gradients, mutations, random number generators, modes, printed
output and exceptions, on every call: with what earlier calls compiled (warm), and with nothing compiled before (cold).
"""

from __future__ import annotations

import collections
import contextlib
import io
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import framesmith
from integration_tests.harness.snapshots import Array, Snapshots, Value

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass
class Case:
    """One program: what to call, with which arguments, and what else to look at after each call.

    before: what changes the world before each call, uncompiled; as long as `calls`, or empty.
    around: makes the context in which each call stands; as long as `calls`, or empty.
    undo: puts back what the program changed outside of its own world.
    """

    fn: Callable[..., Any]
    calls: Sequence[tuple[Any, ...]]
    watch: Sequence[Any] = ()
    backward: bool = False
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    before: Sequence[Callable[[], object]] = ()
    around: Sequence[Callable[[], contextlib.AbstractContextManager[Any]]] = ()
    undo: Callable[[], object] = lambda: None
    rtol: float = 1e-5
    atol: float = 1e-5

    def __post_init__(self) -> None:
        assert all(len(steps) in (0, len(self.calls)) for steps in (self.before, self.around))


@dataclass
class Outcome:
    """The outcome of one call."""

    arguments: Any
    watched: Any
    result: Any
    printed: str
    gradients: list[torch.Tensor | None]
    rng: tuple[torch.Tensor, Any]
    modes: dict[str, Any]


PARTS = ("printed", "result", "arguments", "watched", "gradients", "rng", "modes")


def eager(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The compiler that compiles nothing."""
    return fn


@dataclass
class Run:
    """A program's calls: what each did, and the compiler's statistics."""

    case: Case
    outcomes: list[Outcome]
    statistics: dict[str, int]


def run(make: Callable[[], Case], compiler: Compiler, *, cold: bool = False) -> Run:
    """Build the case and make its calls through `compiler(fn)`, compiled again for each call where `cold`."""
    torch.manual_seed(0)
    random.seed(0)
    framesmith.reset()
    case = make()
    statistics: collections.Counter[str] = collections.Counter()
    outcomes = []
    try:
        fn = compiler(case.fn)
        for call in range(len(case.calls)):
            if cold and call:
                statistics.update(framesmith.stats())
                framesmith.reset()
                fn = compiler(case.fn)
            outcomes.append(run_call(case, fn, call))
    finally:
        case.undo()
    statistics.update(framesmith.stats())
    return Run(case, outcomes, dict(statistics))


def run_call(case: Case, fn: Callable[..., Any], call: int) -> Outcome:
    """One call, its backward pass when the case asks for one, and a snapshot of what it touched."""
    printed = io.StringIO()
    arguments = case.calls[call]
    if case.before:
        case.before[call]()
    with contextlib.redirect_stdout(printed), case.around[call]() if case.around else contextlib.nullcontext():
        try:
            result = fn(*arguments, **case.kwargs)
        except Exception as error:
            result = error
        modes = modes_now()
    leaves = [t for t in tensors_in([arguments, list(case.watch)]) if t.is_leaf and t.requires_grad]
    if case.backward:
        total = sum(t.float().sum() for t in tensors_in(result) if t.requires_grad)
        assert isinstance(total, torch.Tensor), "a case with backward=True must return something that requires grad"
        total.backward()
    gradients = [None if t.grad is None else t.grad.clone() for t in leaves]
    for t in leaves:
        t.grad = None
    snapshots = Snapshots()
    return Outcome(
        snapshots.take(arguments, "arguments", of_argument=True),
        snapshots.take(list(case.watch), "watched"),
        snapshots.take(result, "result"),
        printed.getvalue(),
        gradients,
        (torch.get_rng_state(), random.getstate()),
        modes,
    )


def modes_now() -> dict[str, Any]:
    """The settings of torch that a call could leave changed."""
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "default dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def tensors_in(obj: Any, seen: set[int] | None = None) -> list[torch.Tensor]:
    """Every tensor reachable through containers, dataclasses, modules and plain objects."""
    seen = set() if seen is None else seen
    if id(obj) in seen:
        return []
    seen.add(id(obj))
    if isinstance(obj, torch.Tensor):
        return [obj]
    if isinstance(obj, torch.nn.Module):
        children: list[Any] = [*obj.parameters(), *obj.buffers()]
    elif isinstance(obj, dict):
        children = list(dict.values(obj))
    elif isinstance(obj, (list, tuple, set, frozenset)):
        children = list(obj)
    elif hasattr(obj, "__dict__") and not isinstance(obj, type) and not callable(obj):
        children = list(vars(obj).values())
    else:
        children = []
    return [tensor for child in children for tensor in tensors_in(child, seen)]


def assert_same(expected: Any, actual: Any, case: Case, where: str) -> None:
    """Compare two snapshots; numbers within the case's tolerance, everything else exactly."""
    if isinstance(expected, Array) and isinstance(actual, Array):
        expected, actual = expected.values, actual.values
    if isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor):
        torch.testing.assert_close(
            actual, expected, rtol=case.rtol, atol=case.atol, equal_nan=True, msg=lambda m: f"{where}: {m}"
        )
        return
    assert type(expected) is type(actual), f"{where}: expected {expected!r}, got {actual!r}"
    if isinstance(expected, Value):
        assert expected.kind == actual.kind, f"{where}: expected {expected!r}, got {actual!r}"
        assert_same(expected.value, actual.value, case, where)
        assert expected.argument <= actual.argument, f"{where}: equal to {expected.argument}, but another object"
    elif isinstance(expected, dict):
        assert list(expected) == list(actual), f"{where}: expected {expected!r}, got {actual!r}"
        for key in expected:
            assert_same(expected[key], actual[key], case, f"{where}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        assert len(expected) == len(actual), f"{where}: expected {expected!r}, got {actual!r}"
        for position, (wanted, got) in enumerate(zip(expected, actual, strict=True)):
            assert_same(wanted, got, case, f"{where}[{position}]")
    elif isinstance(expected, (float, complex)):
        assert (
            expected == actual
            or abs(expected - actual) <= case.atol + case.rtol * abs(expected)
            or (expected != expected and actual != actual)
        ), f"{where}: expected {expected!r}, got {actual!r}"
    else:
        assert expected == actual, f"{where}: expected {expected!r}, got {actual!r}"


def assert_same_outcomes(expected: Run, actual: Run, where: str = "") -> None:
    """Compare two runs, call by call."""
    for call, (wanted, got) in enumerate(zip(expected.outcomes, actual.outcomes, strict=True)):
        for part in PARTS:
            assert_same(getattr(wanted, part), getattr(got, part), expected.case, f"{where}call {call}, {part}")


def check(make: Callable[[], Case], *, cold: bool = False, repeat: bool = False, **settings: Any) -> dict[str, int]:
    """Compare compiled with eager on every call of a case; returns the compiler's statistics.

    repeat: eager must also agree with itself, in a second world, or the program would prove nothing.
    """
    expected = run(make, eager)
    if repeat:
        assert_same_outcomes(expected, run(make, eager), "eager twice, ")
    actual = run(make, lambda fn: framesmith.compile(fn, **settings), cold=cold)
    assert_same_outcomes(expected, actual)
    return actual.statistics


def check_strictly(make: Callable[[], Case], *, cold: bool = False, backend: str = "eager") -> dict[str, int]:
    """Compare with eager mode, graphs run as they are unless a backend is given; the compiler's failures are errors."""
    counters = check(make, repeat=True, cold=cold, backend=backend, strict=True)
    assert counters["frames_failed"] == 0, counters
    return counters
