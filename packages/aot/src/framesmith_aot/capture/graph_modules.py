"""Graph modules of every form, run so that a recorder knows the node that is running."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from framesmith_aot.capture.recorder import Recorder, recorder_here


class _Interpreter(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, recorder: Recorder) -> None:
        super().__init__(module)
        self._recorder = recorder

    def run_node(self, n: fx.Node) -> Any:
        before, self._recorder.source = self._recorder.source, n
        try:
            return super().run_node(n)
        finally:
            self._recorder.source = before


class NodeByNode(torch.nn.Module):
    """A graph module whose nodes give what is recorded their stack traces and modules."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        recorder = recorder_here()
        if recorder is None or kwargs:  # an interpreter takes positional arguments
            return self.module(*args, **kwargs)
        return _Interpreter(self.module, recorder).run(*args)
