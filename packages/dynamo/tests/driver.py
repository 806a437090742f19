"""A small `compile` for tests: frames and dynamo, with graphs run as they are. Records events.

Errors reach the test.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import io
from collections.abc import Callable, Iterator
from typing import Any

import torch

import framesmith_frames as frames
from framesmith_dynamo import FrameConverter, FrameEvent
from framesmith_guards.values.constants import FROZEN_DICTS


def run_eagerly(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """A compiler that compiles nothing, but checks that the graph is well formed."""
    module.graph.lint()
    return module.forward


def reraise(error: BaseException, info: frames.FrameInfo) -> None:
    """An error handler for frames that lets nothing pass silently."""
    raise error


class Compiled:
    """A function called with the hook on. `events` are those of the converter."""

    def __init__(self, fn: Callable[..., Any], **options: Any) -> None:
        self.fn = fn
        self.events: list[FrameEvent] = []
        options.setdefault("strict", True)
        self.converter = FrameConverter(run_eagerly, on_event=self.events.append, **options)
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with active(self.converter):
            return self.fn(*args, **kwargs)

    def of_kind(self, kind: str) -> list[FrameEvent]:
        """Return the events of one kind."""
        return [event for event in self.events if event.kind == kind]

    @property
    def graphs(self) -> list[torch.fx.GraphModule]:
        """The graphs compiled so far."""
        return [event.graph for event in self.of_kind("graph") if event.graph is not None]

    @property
    def calls(self) -> list[str]:
        """The operations of all graphs, by name."""
        nodes = [node for graph in self.graphs for node in graph.graph.nodes]
        return [str(getattr(n.target, "__name__", n.target)) for n in nodes if n.op in ("call_function", "call_method")]


@contextlib.contextmanager
def active(converter: FrameConverter) -> Iterator[None]:
    """Make the converter this thread's callback."""
    previous = frames.set_error_handler(reraise)
    try:
        with frames.activated(converter):
            yield
    finally:
        frames.set_error_handler(previous)


def compiled(fn: Callable[..., Any], **options: Any) -> Compiled:
    """Return `fn`, compiled at its calls."""
    return Compiled(fn, **options)


def outcome(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the outcome of a call: its result or exception, its output, and its arguments afterwards."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            result: Any = ("returned", fn(*args))
        except Exception as error:
            result = ("raised", type(error), error.args)
    return (result, printed.getvalue(), args)


def same(a: Any, b: Any, seen: frozenset[tuple[int, int]] = frozenset()) -> bool:
    """Equality that knows tensors (values, dtype, shape), plain objects (class and attributes), and cycles."""
    if type(a) is not type(b):
        return False
    if (id(a), id(b)) in seen:
        return True
    seen |= {(id(a), id(b))}
    if isinstance(a, torch.Tensor):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        return a.numel() == 0 or torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
    if isinstance(a, list | tuple | collections.deque):
        return len(a) == len(b) and all(same(x, y, seen) for x, y in zip(a, b)) and same_attributes(a, b, seen)
    if isinstance(a, (dict, *FROZEN_DICTS)):
        return list(a) == list(b) and all(same(a[key], b[key], seen) for key in a) and same_attributes(a, b, seen)
    if isinstance(a, set | frozenset):
        return set(a) == set(b) and same_attributes(a, b, seen)
    if callable(a):
        return True
    if isinstance(a, BaseException):
        return same(a.args, b.args, seen) and same_attributes(a, b, seen)
    if hasattr(a, "__dict__") or hasattr(type(a), "__slots__"):
        return same_attributes(a, b, seen)
    return bool(a == b) or (a != a and b != b)


def same_attributes(a: Any, b: Any, seen: frozenset[tuple[int, int]]) -> bool:
    """Equality of instance attributes and slots."""
    slots = [name for cls in type(a).__mro__ for name in getattr(cls, "__slots__", ())]
    attributes = [{**getattr(x, "__dict__", {}), **{n: getattr(x, n) for n in slots if hasattr(x, n)}} for x in (a, b)]
    first, second = attributes
    return list(first) == list(second) and all(same(first[name], second[name], seen) for name in first)


def check(fn: Callable[..., Any], *args: Any, calls: int = 3, **options: Any) -> Compiled:
    """Run `fn` compiled `calls` times and compare each call with eager; the arguments are copied for each run."""
    frames.reset()
    subject = compiled(fn, **options)
    for call in range(calls):
        torch.manual_seed(call)
        expected = outcome(fn, copy.deepcopy(args))
        torch.manual_seed(call)
        found = outcome(subject, copy.deepcopy(args))
        assert same(found, expected), f"call {call}: compiled {found}, eager {expected}"
    return subject


def entries_for(fn: Callable[..., Any], calls: list[tuple[Any, ...]], **options: Any) -> list[int]:
    """Return the number of entries after each call; each gives eager's result."""
    frames.reset()
    subject = compiled(fn, recompile_limit=20, **options)
    counts = []
    for args in calls:
        assert same(subject(*args), fn(*args))
        counts.append(len(subject.of_kind("entry")))
    return counts
