"""A backend whose launches are recorded, by a recorder for CPU tensors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from framesmith_backends import CpuBackend
from framesmith_backends.cuda_graphs.capturable import launches_anything, parameters, takes_unbacked, why_not_captured
from framesmith_backends.cuda_graphs.captured_graph import CapturedGraph
from framesmith_backends.cuda_graphs.partition import Part, in_sequence, partition

sys.path.append(str(Path(__file__).parents[2] / "packages" / "backends" / "tests"))
from stand_ins.capturer import StandIn
from stand_ins.gpu_schedule import plan_for_gpus


class Capture(CpuBackend):
    """The `cpu` backend, with launches recorded."""

    name = "recording"

    def __init__(self) -> None:
        self.made: list[CapturedGraph] = []
        self.reasons: list[str] = []
        self.parts: list[list[Part]] = []

    def compile(self, gm: Any, inputs: Sequence[Any], role: Any = "inference", *rest: Any, **more: Any) -> Any:
        why = why_not_captured(gm, torch.device("cpu")) if launches_anything(gm) else "no launches"
        parts = self.compile_parts(gm, role) if why is not None or takes_unbacked(gm) else None
        if parts is not None:
            return parts
        run = super().compile(gm, inputs, role, *rest, **more)
        if why is not None:
            self.reasons.append(why)
            return run
        self.made.append(CapturedGraph(run, parameters(gm), StandIn(), f"the {role} graph"))
        return self.made[-1]

    def compile_parts(self, gm: Any, role: Any) -> Any:
        """The graph in parts; None where none of them is recorded."""
        parts = partition(gm, torch.device("cpu"), lambda part: plan_for_gpus(part).launches)
        if parts is None:
            return None
        functions: list[Any] = [super(Capture, self).compile(part.graph, [], role) for part in parts]
        for at, part in enumerate(parts):
            if part.why is None:
                functions[at] = CapturedGraph(
                    functions[at], parameters(part.graph), StandIn(), f"part {at} of the {role} graph"
                )
                self.made.append(functions[at])
        self.parts.append(parts)
        return in_sequence(gm, parts, functions)
