"""The `eager` backend: the graph run node by node, for debugging and as the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from framesmith_aten.contract import ROLES, BoxedFn, OnError, Role
from framesmith_backends.options import check_role, checked_options
from framesmith_guards.torch_adapter import OpOverload


class EagerBackend:
    """Runs any graph on any device as ATen calls."""

    name = "eager"
    devices: tuple[str, ...] = ("cpu", "cuda", "meta", "mps", "xpu")
    roles: tuple[Role, ...] = ROLES
    options: Mapping[str, object] = {}

    def lowers(self, op: OpOverload) -> bool:
        return True

    def compile(
        self,
        gm: fx.GraphModule,
        inputs: Sequence[torch.Tensor],
        role: Role = "inference",
        options: Mapping[str, object] | None = None,
        on_error: OnError | None = None,
    ) -> BoxedFn:
        check_role(role, self.name)
        checked_options(options, self.options, {}, self.name)
        return run_eagerly(gm)

    def why_not(self, gm: fx.GraphModule) -> str | None:
        return None


def run_eagerly(gm: fx.GraphModule) -> BoxedFn:
    """The graph's own Python code behind the boxed calling convention."""
    forward = gm.forward

    def call(args: list[Any]) -> tuple[Any, ...]:
        values = list(args)
        args.clear()
        result = forward(*values)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    return call


backend = EagerBackend()
