"""Symbolic scalars that a call needs beside the graph: computed from its inputs, or returned by the forward graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import fx
from torch.fx.node import Argument

from framesmith_aot.partition.split import returned_numbers
from framesmith_aot.runtime.codegen import FunctionText, number_name
from framesmith_aot.trace.joint import JointGraph
from framesmith_aten.graphs.numbers import LAYOUT_QUERIES
from framesmith_aten.operators import op_name


@dataclass(frozen=True)
class ScalarText:
    """The node of each number, the inputs' positions by node, the numbers' positions among the forward's results."""

    nodes: Sequence[fx.Node]
    inputs: Mapping[fx.Node, int]
    results: Mapping[int, int]

    @property
    def returned(self) -> list[int]:
        return [*self.results]

    def write(self, text: FunctionText, inputs: Sequence[str], wanted: Collection[int] | None = None) -> None:
        """Bind the names of the numbers (those `wanted`, if given) that are computed from the inputs."""
        names: dict[fx.Node, str] = {}
        for at, node in enumerate(self.nodes):
            if at not in self.results and (wanted is None or at in wanted):
                text.line(f"{number_name(at)} = {self._expression(text, node, inputs, names)}")
                names[node] = number_name(at)

    def _expression(
        self, text: FunctionText, node: fx.Node, inputs: Sequence[str], names: Mapping[fx.Node, str]
    ) -> str:
        if node in names or node.op == "placeholder":
            return names.get(node) or inputs[self.inputs[node]]
        operands = [self._operand(text, arg, inputs, names) for arg in node.args]
        name = op_name(node.target)
        if node.target in LAYOUT_QUERIES:  # size, stride, storage_offset, numel
            return f"{operands[0]}.{name.removeprefix('sym_')}({', '.join(operands[1:])})"
        return f"{text.bind(name, node.target)}({', '.join(operands)})"

    def _operand(self, text: FunctionText, arg: Argument, inputs: Sequence[str], names: Mapping[fx.Node, str]) -> str:
        if isinstance(arg, fx.Node):
            return self._expression(text, arg, inputs, names)
        if isinstance(arg, (tuple, list)):  # the terms of `torch.sym_sum`
            return f"[{', '.join(self._operand(text, one, inputs, names) for one in arg)}]"
        return text.literal(arg)


def numbers_at_calls(joint: JointGraph) -> ScalarText:
    """Return the numbers of a traced graph; the forward graph returns those of `returned_numbers` after its slots."""
    returned = returned_numbers(joint)
    results = {at: len(joint.slots) + place for place, at in enumerate(returned)}
    return ScalarText(joint.numbers, {node: at for at, node in enumerate(joint.inputs)}, results)
