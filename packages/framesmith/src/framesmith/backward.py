"""`compile_backward`: backward passes captured as graphs and compiled by the same backends as forward ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

import framesmith_autograd_compiler
import framesmith_frames
from framesmith.config import make_config
from framesmith.failures import Failures
from framesmith.pipeline import GraphCompiler
from framesmith_autograd_compiler import Capture


@contextmanager
def compile_backward(*, backend: Any = "auto", strict: bool = False, **settings: Any) -> Iterator[Capture]:
    """Within the block, this thread's `backward()` calls are captured, hooks included, and run compiled.

    Takes the settings of `compile()`. Gives a `Capture` that tells the programs recorded, the runs, and the reasons why
    passes were left to the autograd engine. Raises what `compile()` raises for bad settings.
    """
    config = make_config(backend=backend, strict=strict, **settings)
    failures = Failures(config.strict)
    compile_graph = GraphCompiler(config, failures)

    def compiler_fn(gm: fx.GraphModule) -> Callable[..., Any]:
        with framesmith_frames.deactivated(), torch.no_grad():
            # The pass is not differentiated again: what it takes counts as constant.
            values = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
            examples = [value.detach() if isinstance(value, torch.Tensor) else value for value in values]
            return compile_graph(gm, examples)

    with framesmith_autograd_compiler.capture(compiler_fn, on_failure=failures.report) as captured:
        yield captured
