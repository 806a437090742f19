"""The trace going on in a thread: what it has gathered, and where in the user's program it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.weak import WeakTensorKeyDictionary

from framesmith_guards import stacks
from framesmith_guards.contexts.gathered import GlobalContext, GuardsContext, ModuleContext
from framesmith_guards.errors import GuardError, nearest
from framesmith_guards.fakes.modes import active_fake_mode, fake_mode_of

Strides = list[tuple[int, ...] | None]
"""Per output of a graph, the strides its kernel gives it, in elements; None where that is not known."""


class _Local(threading.local):
    current: TracingContext | None = None


_LOCAL = _Local()


class TracingContext:
    """One trace; `locate` says where in the user's program it is, `notes` is for the layers above.

    Its attributes can be patched for a while with `patch`.
    """

    def __init__(
        self, fake_mode: FakeTensorMode | None = None, locate: Callable[[], stacks.Location | None] | None = None
    ) -> None:
        self.fake_mode = fake_mode
        self.locate = locate
        self.guards_context = GuardsContext()
        self.module_context = ModuleContext()
        self.global_context = GlobalContext()
        self.traced_code: list[CodeType] = []
        self.inlined_code: dict[CodeType, Any] = {}
        self.output_strides: Strides | None = None
        self.tensor_contexts: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self.notes: dict[str, Any] = {}

    def clear(self) -> None:
        """Drop what only the tracing itself needed."""
        self.inlined_code.clear()
        self.global_context = GlobalContext()

    @staticmethod
    def try_get() -> TracingContext | None:
        """This thread's trace, or None."""
        return _LOCAL.current

    @staticmethod
    def get() -> TracingContext:
        """This thread's trace; RuntimeError outside one."""
        if _LOCAL.current is None:
            raise RuntimeError("no trace is going on in this thread; enter one with tracing()")
        return _LOCAL.current

    @staticmethod
    @contextmanager
    def patch(**attributes: Any) -> Iterator[None]:
        """Change attributes of this thread's trace for a while. GuardError for one that it does not have."""
        context = TracingContext.get()
        for name in attributes:
            if name not in vars(context):
                raise GuardError(f"a TracingContext has no {name!r}: {nearest(name, vars(context))}")
        previous = {name: getattr(context, name) for name in attributes}
        vars(context).update(attributes)
        try:
            yield
        finally:
            vars(context).update(previous)

    @staticmethod
    @contextmanager
    def report_output_strides() -> Iterator[Strides | None]:
        """A list for the compiler to put the strides of the graph's outputs into; None outside a trace."""
        context = _LOCAL.current
        if context is None:
            yield None
            return
        previous, context.output_strides = context.output_strides, []
        try:
            yield context.output_strides
        finally:
            context.output_strides = previous

    @staticmethod
    def get_traced_code() -> list[CodeType] | None:
        """The code objects inlined into this thread's trace so far; None outside a trace."""
        return None if _LOCAL.current is None else _LOCAL.current.traced_code

    def tensor_context(self, tensor: torch.Tensor) -> Any:
        """What was noted about how a real tensor was made fake (its symbolic sizes); None if nothing was."""
        return self.tensor_contexts.get(tensor)  # type: ignore[no-untyped-call]


@contextmanager
def tracing(context: TracingContext | None) -> Iterator[TracingContext | None]:
    """Make `context` this thread's trace for a while; an exception that leaves it is noted its user's location."""
    previous = _LOCAL.current
    _LOCAL.current = context
    try:
        with stacks.located(None if context is None else context.locate):
            yield context
    finally:
        _LOCAL.current = previous
        shape_env = None if context is None or context.fake_mode is None else context.fake_mode.shape_env
        if shape_env is not None:
            shape_env.cleanup()


def detect_fake_mode(values: Any = None) -> FakeTensorMode | None:
    """The fake mode in use: the trace's, else the innermost active one, else that of the values; None if none.

    GuardError if an active mode and the values, or two of the values, disagree.
    """
    context = TracingContext.try_get()
    if context is not None and context.fake_mode is not None:
        return context.fake_mode
    active, found = active_fake_mode(), fake_mode_of(values)
    if active is not None and found is not None and active is not found:
        raise GuardError("the values hold fake tensors of another fake mode than the active one")
    return active or found
