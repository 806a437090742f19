"""Modes that may be active in a thread of torch, read natively: one bit for each that was seen to be right."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from framesmith_guards.programs.native.probing import extension, undisturbed, why_no_tensors
from framesmith_guards.torch_adapter import TorchDispatchMode, unstable


class _Mode(NamedTuple):
    """A mode: torch's answer in Python whether it is active, and a call of a function while it is."""

    is_active: Callable[[], bool]
    run: Callable[[Callable[[], int]], int]


def _within(context: Callable[[], AbstractContextManager[object]]) -> Callable[[Callable[[], int]], int]:
    def run(look: Callable[[], int]) -> int:
        with context():
            return look()

    return run


def _with_hooks(look: Callable[[], int]) -> int:
    """Look at each depth of nested hooks, of which there are more than in one block of a std::deque."""
    seen = 0
    with ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x))
            seen |= look()
    return seen


class _Passing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that changes nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextmanager
def _transform() -> Iterator[None]:
    unstable.grad_increment_nesting()
    try:
        yield
    finally:
        unstable.grad_decrement_nesting()


def _in_transforms(look: Callable[[], int]) -> int:
    """Look inside one transform, and inside two."""
    with _transform():
        seen = look()
        with _transform():
            return seen | look()


@contextmanager
def _included(key: Any) -> Iterator[None]:
    before = unstable.dispatch_tls_is_dispatch_key_included(key)
    unstable.dispatch_tls_set_dispatch_key_included(key, True)
    try:
        yield
    finally:
        unstable.dispatch_tls_set_dispatch_key_included(key, before)


_MODES: Final = {
    "FUNCTION_MODE": _Mode(lambda: unstable.len_torch_function_stack() > 0, _within(TorchFunctionMode)),
    "TRANSFORM": _Mode(lambda: unstable.peek_interpreter_stack() is not None, _in_transforms),
    "SAVED_TENSOR_HOOKS": _Mode(lambda: unstable.top_saved_tensors_default_hooks(True) is not None, _with_hooks),
    "NO_SAVED_TENSOR_HOOKS": _Mode(
        lambda: not unstable.saved_tensors_hooks_is_enabled(),
        _within(lambda: torch.autograd.graph.disable_saved_tensors_hooks("they are probed")),
    ),
    "INFERENCE_MODE": _Mode(torch.is_inference_mode_enabled, _within(torch.inference_mode)),
}

_KEYS: Final = {"DISPATCH_MODE": "Python", "TRACING": "Tracer"}
"""The dispatch keys that torch includes while a dispatch mode is active, and while torch.jit.trace records."""


def _keys() -> dict[str, Any]:
    """Return the dispatch key of each mode that has one; none where this torch has no functions of keys."""
    is_included, set_included = (
        unstable.dispatch_tls_is_dispatch_key_included,
        unstable.dispatch_tls_set_dispatch_key_included,
    )
    if None in (is_included, set_included, unstable.dispatch_key_parse):
        return {}
    return {name: unstable.dispatch_key_parse(key) for name, key in _KEYS.items()}


@functools.cache
def _known() -> dict[int, _Mode]:
    """Return each mode whose bit can be read, by its bit."""
    native, _ = extension()
    if native is None or why_no_tensors() is not None:
        return {}
    keys = _keys()
    by_key: dict[str, _Mode] = {}
    if keys:
        tracing = keys["TRACING"]
        by_key["TRACING"] = _Mode(
            functools.partial(unstable.dispatch_tls_is_dispatch_key_included, tracing),
            _within(functools.partial(_included, tracing)),
        )
        by_key["DISPATCH_MODE"] = _Mode(lambda: unstable.len_torch_dispatch_stack() > 0, _within(_Passing))
    found = native.modes_find(*(int(keys.get(name, 0)) for name in _KEYS))
    modes = {mode_bits(name): mode for name, mode in {**_MODES, **by_key}.items()}
    return {bit: mode for bit, mode in modes.items() if bit & found}


def mode_bits(*names: str) -> int:
    """Return the bits of modes by their names in `_check.MODES`."""
    native, _ = extension()
    assert native is not None
    return sum(1 << native.MODES[name] for name in names)


def _active() -> int:
    """Return the bits of the modes that torch says are active."""
    return sum(bit for bit, mode in _known().items() if mode.is_active())


def readable_modes() -> int:
    """Return the bits that were seen to be right, off and on; not those of modes active now, which no one sees off."""
    with undisturbed():
        return _right(_active())


@functools.cache
def _right(active: int) -> int:
    native, _ = extension()
    right = sum(_known()) & ~active
    for bit, mode in _known().items():
        if bit & right:
            right &= ~_wrong(native, bit, mode)
    return right


def _wrong(native: Any, bit: int, mode: _Mode) -> int:
    """Return the bits that say something else than torch, before a mode is active, while it is and afterwards."""

    def differing() -> int:
        different: int = (native.modes_read() & sum(_known())) ^ _active()
        return different

    try:
        wrong = differing() | mode.run(lambda: differing() | (0 if mode.is_active() else bit))
    except Exception:  # any name that a future torch lacks
        return bit
    return wrong | differing()
