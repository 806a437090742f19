"""Changes of torch's global state while tracing: made, recorded, undone at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from framesmith_dynamo.torch_adapter import unstable

#: Calls that open a state, with the call that closes it; both take or return the opened object.
CLOSERS: dict[Any, Any] = {
    unstable.enter_autocast: unstable.exit_autocast,
    unstable.enter_inference_mode: unstable.exit_inference_mode,
}


class GlobalStateLog:
    """Changes of torch's global state made while tracing: recorded, undone after the trace, closed in the graph."""

    def __init__(self) -> None:
        self.grad_before = torch.is_grad_enabled()
        self.opened: list[tuple[Any, Any, fx.Node]] = []
        self._results: list[tuple[Any, fx.Node]] = []

    @property
    def changes(self) -> int:
        """The number of changes so far."""
        return len(self._results)

    def node_of(self, arg: Any) -> Any:
        """Return the node of `arg` if it is the result of an earlier state call, else `arg`."""
        return next((node for result, node in self._results if result is arg and arg is not None), arg)

    def record(self, target: Any, args: Sequence[Any], result: Any, node: fx.Node) -> None:
        """Record a state call that was made."""
        self._results.append((result, node))
        if target in CLOSERS:
            self.opened.append((CLOSERS[target], result, node))
        elif any(closer is target for closer, _, _ in self.opened):
            self.opened = [entry for entry in self.opened if not (args and entry[1] is args[0])]

    def grad_after(self) -> bool | None:
        """Return the grad mode at the program's end, if it differs from the initial one."""
        now = torch.is_grad_enabled()
        return now if now != self.grad_before else None

    def closing_calls(self) -> list[tuple[Any, tuple[Any, ...]]]:
        """Return the calls that close the graph's state changes, innermost first."""
        calls: list[tuple[Any, tuple[Any, ...]]] = [(closer, (node,)) for closer, _, node in reversed(self.opened)]
        if self.grad_after() is not None:
            calls.append((unstable.set_grad_enabled, (self.grad_before,)))
        return calls

    def restore(self) -> None:
        """Restore torch's state to that before the trace."""
        for closer, result, _ in reversed(self.opened):
            closer(result)
        self.opened.clear()
        unstable.set_grad_enabled(self.grad_before)
