"""Continuations inside `with` and `try` blocks: context managers are entered for real, exceptions reach their handlers.

An open block is a slot of the value stack that holds its exit (`values.exits.ExitValue`). Objects whose
`__enter__` was traced are in the right state once the journal has been replayed; torch's context managers, which the
trace only recorded in the graph, are created and entered again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values.exits import ExitValue
from framesmith_dynamo.values.objects.objects import ObjectValue
from framesmith_dynamo.values.torch_api.contexts import (
    AutocastValue,
    GradModeValue,
    SetGradEnabledValue,
    TorchContextValue,
)

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_dynamo.graph.modes import GlobalStateLog
    from framesmith_dynamo.trace_state import TraceState
    from framesmith_dynamo.values.base import Value

BREAK_IN_BLOCK = register_break(
    "break-in-block",
    what="the graph breaks inside a block that cannot be continued in a function of its own",
    why="an exception is being handled, or a context manager cannot be entered again",
    hint="move the breaking call out of the block, or the block into a function of its own",
)


def exits_of(stack: Iterable[Value | None]) -> list[ExitValue]:
    """Return the open `with` blocks, outermost first."""
    return [value for value in stack if isinstance(value, ExitValue)]


def contexts_of(stack: Iterable[Value | None]) -> list[TorchContextValue]:
    """Return those of torch's context managers, whose re-entry sets the state of the trace."""
    managers = [value.manager for value in exits_of(stack)]
    return [manager for manager in managers if isinstance(manager, TorchContextValue)]


def check_blocks(state: TraceState, stack: Sequence[Value | None], others: Iterable[Value], reason: GraphBreak) -> None:
    """Raise GraphBreak when the open blocks cannot be continued. `others` are further live values."""
    why = why_not_continued(state, stack, others)
    if why is not None:
        raise GraphBreak(BREAK_IN_BLOCK, f"{why}; the break: {reason}")


def why_not_continued(state: TraceState, stack: Sequence[Value | None], others: Iterable[Value]) -> str | None:
    """Return why the open blocks cannot be continued, or None."""
    if state.handled is not None:
        return "an exception is being handled"
    managers = [value.manager for value in exits_of(stack)]
    strange = next((m for m in managers if not isinstance(m, ObjectValue | TorchContextValue)), None)
    if strange is not None:
        return f"{strange.describe()} cannot be entered again"
    contexts = contexts_of(stack)
    kept = next((context for context in contexts if not context.is_reentered), None)
    if kept is not None:
        return f"the block of {kept.cls.__name__} cannot be left and entered again"
    if any(value is context for value in others for context in contexts):
        return "a context manager of torch is used as an object"
    return why_not_reentered(state.builder.state, contexts)


def why_not_reentered(log: GlobalStateLog, contexts: Sequence[TorchContextValue]) -> str | None:
    """Return why re-entering torch's contexts would not restore the state of the trace, or None."""
    grad = log.grad_before
    for context in contexts:
        if isinstance(context, GradModeValue):
            found = context.former if isinstance(context, SetGradEnabledValue) else context.saved[-1]
            if found != grad:
                return "the gradient mode was changed before the block"
            grad = context.mode()
    if contexts and grad != torch.is_grad_enabled():
        return "the gradient mode was changed inside the block"
    if len(log.opened) != sum(isinstance(context, AutocastValue) for context in contexts):
        return "autocast was entered in another way"
    return None


def push_exit(codegen: Codegen, manager: Value) -> None:
    """Push the exit of an open block: that of an object, or of a torch context entered now."""
    if isinstance(manager, TorchContextValue):
        codegen.push_call(reenter, (), (manager.cls, manager.args, tuple(manager.kwargs.items())))
    else:
        codegen.push_call(bound_exit, (manager,))


def bound_exit(manager: Any) -> Callable[..., Any]:
    """Called by compiled code: return the `__exit__` that a `with` statement saves."""
    cls = type(manager)
    found: Any = next(vars(base)["__exit__"] for base in cls.__mro__ if "__exit__" in vars(base))
    bind = getattr(type(found), "__get__", None)
    exit_function: Callable[..., Any] = found if bind is None else bind(found, manager, cls)
    return exit_function


def reenter(cls: type, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    """Called by compiled code: create and enter a context manager, and return its exit."""
    manager = cls(*args, **dict(kwargs))
    type(manager).__enter__(manager)
    return bound_exit(manager)
