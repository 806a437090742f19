"""The FX graph under construction: inputs, calls run on fake tensors, state changes, outputs, removal of dead nodes.

Knows tensors and nodes, not values: a `TensorRef` pairs a fake tensor with its node, and values hold refs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source


class TensorRef:
    """A tensor of the trace: its fake and the graph node that makes it.

    `real` and `source` are set for graph inputs, whose placeholder node appears on first use of `node`.
    """

    __slots__ = ("_node", "builder", "fake", "output", "real", "source")

    def __init__(
        self,
        builder: GraphBuilder,
        fake: torch.Tensor,
        node: fx.Node | None = None,
        *,
        real: torch.Tensor | None = None,
        source: Source | None = None,
    ) -> None:
        self.builder = builder
        self.fake = fake
        self._node = node
        self.real = real
        self.source = source
        self.output: int | None = None

    @property
    def node(self) -> fx.Node:
        """The node computing this tensor; asking an input for it makes the input part of the graph."""
        if self._node is None:
            self._node = self.builder.add_placeholder(self)
        return self._node

    @property
    def is_used(self) -> bool:
        """Whether a node exists."""
        return self._node is not None

    def load(self, codegen: Codegen) -> None:
        """Push the tensor in residual code: one of the graph's outputs."""
        self.builder.load_output(codegen, self)
