"""`torch.compile(m, backend="framesmith")`: our aot and backends under torch.compile's own frame capture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from framesmith.config import make_config
from framesmith.graphs.pipeline import GraphCompiler
from framesmith.reports.failures import Failures


def framesmith_backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Callable[..., Any]:
    """The entry point of torch's `torch_dynamo_backends` group. Graphs with symbolic sizes run as they are."""
    if any(not isinstance(value, torch.Tensor) for value in example_inputs):
        return gm.forward
    config = make_config(mode=mode, options=options)
    failures = Failures(strict=False)
    try:
        return GraphCompiler(config, failures)(gm, example_inputs).run
    except Exception as error:
        failures.report("a graph from torch.compile", error)
        return gm.forward
