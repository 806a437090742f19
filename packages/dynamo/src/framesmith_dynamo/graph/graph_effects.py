"""Which graph calls have effects beyond their result, and torch's global state as the trace changes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.autograd.grad_mode import _enter_inference_mode, _exit_inference_mode

#: Names of operations that draw random numbers, update statistics, or check: never removed, even if nothing uses the
#: result.
EFFECT_NAMES = frozenset({
    "alpha_dropout", "batch_norm", "bernoulli", "dropout", "dropout1d", "dropout2d", "dropout3d",
    "feature_alpha_dropout",
    "feature_dropout", "fractional_max_pool2d", "fractional_max_pool3d", "gumbel_softmax", "instance_norm",
    "multinomial",
    "native_dropout", "normal", "poisson", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like",
    "randperm", "rrelu",
    "scaled_dot_product_attention", "_assert", "_assert_async", "_check",
})  # fmt: skip

#: Calls that open a state, with the call that closes it; both take or give the opened object.
CLOSERS: dict[Any, Any] = {_enter_autocast: _exit_autocast, _enter_inference_mode: _exit_inference_mode}


def has_effects(target: Any) -> bool:
    """Whether a call of `target` must stay in the graph though nothing uses its result, as far as its name tells."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return name in EFFECT_NAMES or (name.endswith("_") and not name.endswith("__"))


def is_impure(node: fx.Node) -> bool:
    """Whether a node was found to have effects when it was recorded."""
    return bool(node.meta.get("impure", False))


def versions(tensors: Sequence[Any]) -> tuple[int, ...]:
    """Version counters of the tensors (also inside one level of tuples and lists).

    A change tells of an in-place operation.
    """
    return tuple(version for item in tensors for version in _versions(item))


def _versions(item: Any) -> Iterator[int]:
    if isinstance(item, torch.Tensor):
        if not item.is_inference():
            yield item._version
    elif isinstance(item, tuple | list):
        for inner in item:
            yield from _versions(inner)


class GlobalStateLog:
    """Changes of torch's global state made while tracing: recorded, given back at the end, ended in the graph."""

    def __init__(self) -> None:
        self.grad_before = torch.is_grad_enabled()
        self.opened: list[tuple[Any, Any, fx.Node]] = []
        self._results: list[tuple[Any, fx.Node]] = []

    def node_of(self, arg: Any) -> Any:
        """The node that made `arg` when it is the result of an earlier state call, else `arg`."""
        return next((node for result, node in self._results if result is arg and arg is not None), arg)

    def record(self, target: Any, args: Sequence[Any], result: Any, node: fx.Node) -> None:
        """Note a state call that was made."""
        self._results.append((result, node))
        if target in CLOSERS:
            self.opened.append((CLOSERS[target], result, node))
        elif any(closer is target for closer, _, _ in self.opened):
            self.opened = [entry for entry in self.opened if not (args and entry[1] is args[0])]

    def grad_after(self) -> bool | None:
        """The grad mode the traced program leaves behind, if it differs from the one it found."""
        now = torch.is_grad_enabled()
        return now if now != self.grad_before else None

    def closing_calls(self) -> list[tuple[Any, tuple[Any, ...]]]:
        """Calls that end the graph's state changes, innermost first."""
        calls: list[tuple[Any, tuple[Any, ...]]] = [(closer, (node,)) for closer, _, node in reversed(self.opened)]
        if self.grad_after() is not None:
            calls.append((torch._C._set_grad_enabled, (self.grad_before,)))
        return calls

    def restore(self) -> None:
        """Put torch's state back as it was before the trace."""
        for closer, result, _ in reversed(self.opened):
            closer(result)
        self.opened.clear()
        torch._C._set_grad_enabled(self.grad_before)
