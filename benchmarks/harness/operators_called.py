"""Operators of torch's that a step calls, as the profiler sees them, without those that other operators call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

FIGURE = "operator calls"


def _is_operator(event: Any) -> bool:
    return "::" in event.name and not event.name.startswith("autograd::")


def _is_outermost(event: Any) -> bool:
    around = event.cpu_parent
    while around is not None:
        if _is_operator(around):
            return False
        around = around.cpu_parent
    return True


def operators_called(step: Callable[[], object]) -> int:
    """The operators of one step, each counted once for each call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    return sum(_is_operator(event) and _is_outermost(event) for event in profile.events())
