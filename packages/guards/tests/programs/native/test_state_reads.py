"""The cheap reads of torch's state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from native_programs import f, native
from torch.utils._python_dispatch import TorchDispatchMode

from framesmith_guards import state_guards
from framesmith_guards.programs.native import modes
from framesmith_guards.programs.native.probing import extension
from framesmith_guards.programs.native.state import cheap_reads

pytestmark = pytest.mark.skipif(extension()[0] is None, reason=str(extension()[1]))


class Dispatching(TorchDispatchMode):
    """Looks while its own code runs, in which the mode is off."""

    def __init__(self, seen: list[int]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(read())
        return func(*args, **(kwargs or {}))


def read() -> int:
    native_module, _ = extension()
    assert native_module is not None
    return int(native_module.modes_read())


@contextmanager
def hooks() -> Iterator[None]:
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        yield


@contextmanager
def many_hooks() -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(33):
            stack.enter_context(hooks())
        yield


@contextmanager
def no_hooks() -> Iterator[None]:
    with torch.autograd.graph.disable_saved_tensors_hooks("a test"):
        yield


CONTEXTS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "function mode": (torch.overrides.TorchFunctionMode, ("FUNCTION_MODE",)),
    "default device": (lambda: torch.device("meta"), ("FUNCTION_MODE",)),
    "dispatch mode": (lambda: Dispatching([]), ("DISPATCH_MODE",)),
    "hooks": (hooks, ("SAVED_TENSOR_HOOKS",)),
    "many hooks": (many_hooks, ("SAVED_TENSOR_HOOKS",)),
    "no hooks": (no_hooks, ("NO_SAVED_TENSOR_HOOKS",)),
    "inference mode": (torch.inference_mode, ("INFERENCE_MODE",)),
}


def test_every_mode_is_read_natively() -> None:
    """With this torch, the usual state takes the snapshot and one look at the modes."""
    bits = modes.readable_modes()
    native_module, _ = extension()
    assert native_module is not None and bits == modes.mode_bits(*native_module.MODES)
    assert cheap_reads(state_guards()) == (bits, ())


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_mode_is_seen_while_it_is_active(name: str) -> None:
    context, names = CONTEXTS[name]
    program = native([])
    assert program((1,), f) and read() == 0
    for _ in range(2):
        with context():
            assert read() == modes.mode_bits(*names)
            assert not program((1,), f) and program.explain((1,), f) is not None
        assert read() == 0 and program((1,), f)


def test_transforms_are_seen() -> None:
    program = native([])
    seen: list[tuple[int, bool]] = []

    def looked(x: torch.Tensor) -> torch.Tensor:
        seen.append((read() & modes.mode_bits("TRANSFORM"), program((1,), f)))
        return x * 2

    x = torch.ones(3)
    torch.func.vmap(looked)(x)
    torch.func.grad(lambda x: torch.func.vmap(looked)(x).sum())(x)
    torch.func.functionalize(looked)(x)
    torch.func.jvp(looked, (x,), (x,))
    assert seen == [(modes.mode_bits("TRANSFORM"), False)] * 4
    assert read() == 0 and program((1,), f)


def test_tracing_is_seen() -> None:
    program = native([])
    seen: list[tuple[int, bool]] = []

    def traced(x: torch.Tensor) -> torch.Tensor:
        seen.append((read(), program((1,), f)))
        return x + 1

    torch.jit.trace(traced, (torch.ones(1),), check_trace=False)
    assert seen == [(modes.mode_bits("TRACING"), False)] and read() == 0


def test_a_mode_is_off_in_its_own_code() -> None:
    mode = Dispatching([])
    with mode:
        torch.ones(1)
    assert mode.seen == [0]


def test_modes_are_a_threads_own() -> None:
    program = native([])
    seen: list[object] = []
    with hooks(), torch.inference_mode():
        thread = threading.Thread(target=lambda: seen.extend([read(), program((1,), f)]))
        thread.start()
        thread.join()
        assert read() == modes.mode_bits("SAVED_TENSOR_HOOKS", "INFERENCE_MODE")
    assert seen == [0, True]


HOOKS = ("SAVED_TENSOR_HOOKS", "NO_SAVED_TENSOR_HOOKS")


@pytest.mark.parametrize(
    ("name", "unseen"), [("default device", ("FUNCTION_MODE",)), ("hooks", HOOKS), ("no hooks", HOOKS)]
)
def test_a_mode_that_is_active_when_modes_are_probed_is_left_to_torch(name: str, unseen: tuple[str, ...]) -> None:
    """Its bit was not seen off; hooks and their absence exclude each other.

    A program made there holds there, and not elsewhere; later ones use all bits.
    """
    context, _ = CONTEXTS[name]
    everything = modes.readable_modes()
    modes._right.cache_clear()
    with context():
        assert modes.readable_modes() == everything & ~modes.mode_bits(*unseen)
        program = native([])
        assert program((1,), f)
    assert not program((1,), f)
    assert modes.readable_modes() == everything


@pytest.mark.parametrize("name", ["FUNCTION_MODE", "TRANSFORM", "SAVED_TENSOR_HOOKS", "INFERENCE_MODE"])
def test_a_bit_that_is_wrong_is_not_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a torch that keeps something else there: torch's answer differs from the bit."""
    known = modes._known()
    bit = modes.mode_bits(name)
    everything = modes.readable_modes()
    for wrong in (lambda: True, lambda: False):
        monkeypatch.setitem(known, bit, known[bit]._replace(is_active=wrong))
        modes._right.cache_clear()
        assert modes.readable_modes() == everything & ~bit
        program = native([])
        context, _ = CONTEXTS["inference mode"]
        assert program((1,), f)
        with context():
            assert not program((1,), f)
        monkeypatch.undo()
        known = modes._known()
    modes._right.cache_clear()
    assert modes.readable_modes() == everything
