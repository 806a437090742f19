"""Run a program compiled and eagerly, from the same seed, and compare everything a user could see.

Values, dtypes, shapes, strides, aliasing with the arguments, gradients, mutations, the random number generator and
printed output, on every call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import framesmith


@dataclass
class Case:
    """One program: what to call, with which arguments, and what else to look at after each call."""

    fn: Callable[..., Any]
    calls: Sequence[tuple[Any, ...]]
    watch: Sequence[Any] = ()
    backward: bool = False
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    rtol: float = 1e-5
    atol: float = 1e-5


@dataclass
class Outcome:
    """What one call did."""

    result: Any
    printed: str
    arguments: Any
    watched: Any
    gradients: list[torch.Tensor | None]
    rng: torch.Tensor


def run(make: Callable[[], Case], compiler: Callable[[Callable[..., Any]], Callable[..., Any]]) -> list[Outcome]:
    """Build the case afresh and make its calls through `compiler(fn)`."""
    torch.manual_seed(0)
    case = make()
    fn = compiler(case.fn)
    return [run_call(case, fn, arguments) for arguments in case.calls]


def run_call(case: Case, fn: Callable[..., Any], arguments: tuple[Any, ...]) -> Outcome:
    """One call, its backward pass when the case asks for one, and a snapshot of what it touched."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            result = fn(*arguments, **case.kwargs)
        except Exception as error:
            result = (type(error), error.args)
    leaves = [t for t in tensors_in([arguments, list(case.watch)]) if t.is_leaf and t.requires_grad]
    if case.backward:
        total = sum(t.float().sum() for t in tensors_in(result) if t.requires_grad)
        assert isinstance(total, torch.Tensor), "a case with backward=True must return something that requires grad"
        total.backward()
    gradients = [None if t.grad is None else t.grad.clone() for t in leaves]
    for t in leaves:
        t.grad = None
    return Outcome(
        snapshot(result, arguments),
        printed.getvalue(),
        snapshot(arguments, arguments),
        snapshot(list(case.watch), arguments),
        gradients,
        torch.get_rng_state(),
    )


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
    elif isinstance(obj, Mapping):
        children = list(obj.values())
    elif isinstance(obj, (list, tuple, set, frozenset)):
        children = list(obj)
    elif hasattr(obj, "__dict__") and not isinstance(obj, type) and not callable(obj):
        children = list(vars(obj).values())
    else:
        children = []
    return [tensor for child in children for tensor in tensors_in(child, seen)]


def snapshot(obj: Any, arguments: Any) -> Any:
    """A comparable copy: tensors become their contents and metadata, with which argument they share memory."""
    if isinstance(obj, torch.Tensor):
        owners = [i for i, t in enumerate(tensors_in(arguments)) if shares_memory(t, obj)]
        same = [i for i, t in enumerate(tensors_in(arguments)) if t is obj]
        meta = (type(obj), obj.dtype, obj.device, tuple(obj.shape), obj.stride(), obj.requires_grad, owners, same)
        return ("tensor", meta, obj.detach().clone())
    if isinstance(obj, torch.nn.Module):
        state = {name: snapshot(value, arguments) for name, value in obj.state_dict().items()}
        plain = {k: v for k, v in vars(obj).items() if isinstance(v, (bool, int, float, str, list, dict, tuple))}
        return ("module", type(obj).__qualname__, state, {k: v for k, v in plain.items() if not k.startswith("_")})
    if isinstance(obj, Mapping):
        return ("map", type(obj), [(key, snapshot(value, arguments)) for key, value in obj.items()])
    if isinstance(obj, (list, tuple)):
        return ("sequence", type(obj), [snapshot(item, arguments) for item in obj])
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return ("object", type(obj).__qualname__, [(k, snapshot(v, arguments)) for k, v in vars(obj).items()])
    if isinstance(obj, (int, float, str, bool, type(None), set, frozenset, torch.dtype, torch.device, type)):
        return ("value", type(obj), obj)
    if hasattr(obj, "__dict__"):
        public = {k: v for k, v in vars(obj).items() if not callable(v)}
        return ("object", type(obj).__qualname__, [(k, snapshot(v, arguments)) for k, v in public.items()])
    return ("opaque", type(obj).__qualname__)


def shares_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors use the same storage."""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() and a.numel() > 0


def assert_same(expected: Any, actual: Any, case: Case, where: str) -> None:
    """Compare two snapshots; tensors within the case's tolerance, everything else exactly."""
    if isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor):
        torch.testing.assert_close(
            actual, expected, rtol=case.rtol, atol=case.atol, equal_nan=True, msg=lambda m: f"{where}: {m}"
        )
        return
    assert type(expected) is type(actual), f"{where}: expected {expected!r}, got {actual!r}"
    if isinstance(expected, dict):
        assert list(expected) == list(actual), f"{where}: expected keys {list(expected)}, got {list(actual)}"
        for key in expected:
            assert_same(expected[key], actual[key], case, f"{where}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        assert len(expected) == len(actual), f"{where}: expected {expected!r}, got {actual!r}"
        for position, (wanted, got) in enumerate(zip(expected, actual, strict=True)):
            assert_same(wanted, got, case, f"{where}[{position}]")
    elif isinstance(expected, float):
        assert (
            expected == actual
            or abs(expected - actual) <= case.atol + case.rtol * abs(expected)
            or (expected != expected and actual != actual)
        ), f"{where}: expected {expected!r}, got {actual!r}"
    else:
        assert expected == actual, f"{where}: expected {expected!r}, got {actual!r}"


def check(make: Callable[[], Case], **settings: Any) -> dict[str, int]:
    """Compare compiled with eager on every call of a case; returns the compiler's statistics."""
    expected = run(make, lambda fn: fn)
    framesmith.reset()
    actual = run(make, lambda fn: framesmith.compile(fn, **settings))
    case = make()
    for call, (wanted, got) in enumerate(zip(expected, actual, strict=True)):
        for part in ("printed", "result", "arguments", "watched", "gradients", "rng"):
            assert_same(getattr(wanted, part), getattr(got, part), case, f"call {call}, {part}")
    return framesmith.stats()
