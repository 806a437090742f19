"""The kinds of GPUs that kernels are compiled for in tests: each kernel for one of them, in long runs for all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from case_selection.sweeps import LONG

#: Their compute capabilities.
CAPABILITIES = (80, 90, 100)


def with_capabilities(cases: Iterable[Any]) -> list[tuple[Any, int]]:
    """Each case with a compute capability, the next one for the next case; with `FRAMESMITH_LONG` with all of them."""
    return [
        (case, capability)
        for at, case in enumerate(cases)
        for k, capability in enumerate(CAPABILITIES)
        if LONG or k == at % len(CAPABILITIES)
    ]
