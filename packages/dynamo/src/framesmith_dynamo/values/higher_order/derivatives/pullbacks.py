"""The function that `torch.func.vjp` returns, as a value of the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from framesmith_aten.graphs.transforms import PullBack
from framesmith_aten.meta import EXAMPLE
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.graph.builder import ESCAPED
from framesmith_dynamo.values.base import Value

if TYPE_CHECKING:
    from torch import fx

    from framesmith_bytecode import Codegen

OUTLIVES = register_break(
    "pullback-outlives-graph",
    what="the function that torch.func.vjp has returned is needed after the graph",
    why="it holds the history of tensors of the graph, which the graph does not give",
    hint="call it in the compiled function, or call torch.func.vjp outside",
)


class PullBackValue(Value):
    """The graph's value for such a function; only a node can use it."""

    python_types = (PullBack,)
    __slots__ = ("node",)

    def __init__(self, node: fx.Node) -> None:
        super().__init__()
        self.node = node

    def as_proxy(self) -> fx.Node:
        if not EXAMPLE.on(self.node):  # its body has left the graph
            raise GraphBreak(ESCAPED)
        return self.node

    def reconstruct(self, codegen: Codegen) -> None:
        raise GraphBreak(OUTLIVES)
