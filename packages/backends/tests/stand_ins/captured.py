"""Functions captured by the stand-in for a capturer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from stand_ins.capturer import StandIn

from framesmith_backends.cuda_graphs.capturable import Parameters
from framesmith_backends.cuda_graphs.captured_graph import CapturedGraph


def captured_graph_of(
    function: Callable[..., Any],
    tensors: int = 1,
    *,
    numbers: int = 0,
    varying: bool = False,
    written: tuple[int, ...] = (),
) -> tuple[CapturedGraph, StandIn]:
    """The function of tensors and then numbers, captured."""

    def run(args: list[Any]) -> Any:
        values = [*args]
        args.clear()
        result = function(*values)
        return result if isinstance(result, (tuple, list)) else (result,)

    positions = tuple(range(tensors))
    parameters = Parameters(
        positions, tuple(range(tensors, tensors + numbers)), positions if varying else (), frozenset(written)
    )
    capturer = StandIn()
    return CapturedGraph(run, parameters, capturer, "the graph"), capturer


def add_in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = x + y
    x.copy_(total)
    return total * 2
