"""What a backend is: the protocol, the roles a graph can have, and the form of a compiled graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import fx

Role = Literal["inference", "forward", "backward"]
ROLES: tuple[Role, ...] = ("inference", "forward", "backward")

# Takes a list of inputs, which it may empty, and returns a tuple of outputs.
BoxedFn = Callable[[list[Any]], tuple[Any, ...]]


@runtime_checkable
class Backend(Protocol):
    """A compiler of functional ATen graphs.

    `devices` are the device types whose tensors it compiles kernels for, `roles` the graphs it takes, and
    `options` maps each option's name to its default value.
    """

    @property
    def name(self) -> str: ...
    @property
    def devices(self) -> tuple[str, ...]: ...
    @property
    def roles(self) -> tuple[Role, ...]: ...
    @property
    def options(self) -> Mapping[str, object]: ...

    def compile(
        self,
        gm: fx.GraphModule,
        inputs: Sequence[torch.Tensor],
        role: Role = "inference",
        options: Mapping[str, object] | None = None,
    ) -> BoxedFn:
        """Compile the graph; `inputs` are the (fake) tensors of its placeholders."""
        ...

    def why_not(self, gm: fx.GraphModule) -> str | None:
        """Why this backend cannot compile the graph, or None."""
        ...
