"""A backend whose launches are recorded, by a recorder for CPU tensors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from framesmith_backends import CpuBackend
from framesmith_backends.launch.recordable import launches_anything, parameters, why_not_recorded
from framesmith_backends.launch.recordings import Graphed

sys.path.append(str(Path(__file__).parents[1] / "packages" / "backends" / "tests"))
from stand_in_recorder import StandIn


class Recording(CpuBackend):
    """The `cpu` backend, with launches recorded."""

    name = "recording"

    def __init__(self) -> None:
        self.made: list[Graphed] = []
        self.reasons: list[str] = []

    def compile(self, gm: Any, inputs: Sequence[Any], role: Any = "inference", *rest: Any, **more: Any) -> Any:
        run = super().compile(gm, inputs, role, *rest, **more)
        why = why_not_recorded(gm, torch.device("cpu")) if launches_anything(gm) else "no launches"
        if why is not None:
            self.reasons.append(why)
            return run
        self.made.append(Graphed(run, parameters(gm), StandIn(), f"the {role} graph"))
        return self.made[-1]
