"""Launch lists as a GPU would have them, with kernels that the CPU runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from framesmith_backends.cpu import begin_machine_code
from framesmith_backends.launch.source import executed, write
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.schedule.plan import Plan, make_plan
from framesmith_backends.schedule.steps import Run
from framesmith_backends.target import CPU, GPU, Target

#: Rows are reduced along with columns by Triton kernels alone.
ROWS_ALONE = replace(GPU, row_column=None, scratch=True, index_splitting=True)


def plan_for_gpus(gm: fx.GraphModule, target: Target = ROWS_ALONE) -> Plan:
    """Its launch list, kernels taking points in order as the CPU's do."""
    return make_plan(lower_graph(gm, replace(CPU, statistics=target.split)).program, target)


def scheduled_for_gpus(gm: fx.GraphModule, target: Target = ROWS_ALONE) -> Callable[[list[torch.Tensor]], Any]:
    """The graph by that list."""
    plan = plan_for_gpus(gm, target)
    source, space = write(plan, gm)
    runs = [step for step in plan.steps if isinstance(step, Run)]
    return executed(source, space | (begin_machine_code(runs, strict=True)[1].result() if runs else {}))
