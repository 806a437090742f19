"""The cheap reads of torch's state."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from framesmith_guards.programs.native.probing import mode_reader
from framesmith_guards.programs.native.state import _CHEAPER


def test_one_read_covers_dispatch_modes_and_tracing() -> None:
    """Both are off in nearly every call: one look at the thread's dispatch keys."""
    reader = mode_reader()
    assert reader is not None and reader() is False
    assert _CHEAPER["TORCH_DISPATCH_MODES"](()) == _CHEAPER["JIT_TRACING"](False) == ((reader, False),)
    seen: list[bool] = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(reader())
            return func(*args, **(kwargs or {}))

    with Mode():
        seen.append(reader())
        torch.ones(1)
    assert seen == [True, False]

    def traced(x: torch.Tensor) -> torch.Tensor:
        seen.append(reader())
        return x + 1

    torch.jit.trace(traced, (torch.ones(1),), check_trace=False)
    assert seen[2:] == [True] and not reader()
