"""Random masks drawn a second time: the state of the CPU's generator before a draw, and the draw from that state.

A checkpoint's recomputation draws the numbers of its forward pass. In eager mode it restores the generator for that;
in a graph the state is a tensor, read before the draw and saved for backward in place of what was drawn.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence

import torch

from framesmith_aten.table import OWN_NAMESPACE
from framesmith_guards.torch_adapter import OpOverload


@functools.cache
def state_bytes() -> int:
    """Return the size of the CPU generator's state."""
    return torch.Generator("cpu").get_state().numel()


@functools.cache
def generator_state() -> OpOverload:
    """Return `generator_state() -> Tensor`: the default generator's state, bytes; it keeps its place among draws."""
    return _define("generator_state() -> Tensor", _state, "CompositeExplicitAutograd", _STATEFUL)


@functools.cache
def redrawn_mask() -> OpOverload:
    """Return `redrawn_mask(Tensor state, SymInt[] size, float p) -> Tensor`.

    The results are contiguous bools: where `torch.bernoulli` of that probability gives 1 to a generator of that state.
    No generator is advanced.
    """
    schema = "redrawn_mask(Tensor state, SymInt[] size, float p) -> Tensor"
    return _define(schema, _redrawn, "CPU", fake=lambda state, size, p: _bools(state, size))


_STATEFUL = (torch.Tag.nondeterministic_seeded,)
_defining = threading.Lock()


def _define(
    schema: str,
    run: Callable[..., torch.Tensor],
    key: str,
    tags: Sequence[torch.Tag] = (),
    fake: Callable[..., torch.Tensor] | None = None,
) -> OpOverload:
    """Return the operator of a schema; two threads that ask at once define it once."""
    name, namespace = schema.partition("(")[0], getattr(torch.ops, OWN_NAMESPACE)
    with _defining:
        if not hasattr(namespace, name):
            _library().define(schema, tags=tags)  # type: ignore[no-untyped-call]
            _library().impl(name, run, key)  # type: ignore[no-untyped-call]
            if fake is not None:
                _library().impl(name, fake, "Meta")  # type: ignore[no-untyped-call]
    made: OpOverload = getattr(namespace, name).default
    return made


@functools.cache
def _library() -> torch.library.Library:
    return torch.library.Library(OWN_NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


def _state() -> torch.Tensor:
    return torch.default_generator.get_state()


def _bools(state: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return torch.empty(size, dtype=torch.bool, device=state.device)


def _redrawn(state: torch.Tensor, size: Sequence[int], p: float) -> torch.Tensor:
    return _bools(state, size).bernoulli_(p, generator=torch.Generator("cpu").set_state(state))
