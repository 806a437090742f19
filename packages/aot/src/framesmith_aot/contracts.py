"""What the layer below (a backend's compiler) and this package promise each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import fx

Role = Literal["inference", "forward", "backward"]

BoxedFn = Callable[[list[Any]], Sequence[Any]]
"""Takes a list it may empty (so that memory is freed early) and returns a sequence of tensors."""

Decompositions = dict[Any, Callable[..., Any]]
"""From an ATen overload to the function that computes it out of simpler operators."""


class Compiler(Protocol):
    """Turns one functional ATen graph into a callable.

    The graph holds functional ATen calls, every node has `meta["val"]` (a FakeTensor), its outputs
    are fresh tensors that alias neither each other nor an input, with the strides of their
    `meta["val"]`; input mutations are trailing `aten.copy_` calls onto placeholders.
    """

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[torch.Tensor], role: Role, /) -> BoxedFn: ...
