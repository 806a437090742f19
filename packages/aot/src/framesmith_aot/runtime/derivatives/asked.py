"""The gradients that the running backward pass asks of an autograd node, and eager mode's refusals of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace.output_groups import Operand, Refusal

#: After so many passes every leaf is asked about again; see `Asked`.
PASSES: Final = 16


def refuse(refusals: Mapping[int, Refusal], node: Any) -> None:
    """Raise eager mode's error where it refuses the gradient of an operand of a node that this pass asks for."""
    if not refusals:
        return
    edges = node.next_functions
    met = [one for at, one in refusals.items() if leads_to_a_result(edges[at][0])]
    if met:
        first = max(met, key=lambda refusal: refusal.number)
        raise first.error(first.message)


def leads_to_a_result(node: Any) -> bool:
    """Whether the running pass executes a node, or ends there with a gradient asked for; True outside a pass."""
    if node is None:
        return False
    try:
        return bool(unstable.will_engine_execute_node(node))
    except RuntimeError:  # torch raises it for leaves whose gradients are asked for
        return True


class Asked:
    """The operands of one autograd node whose gradients passes ask for.

    Of a leaf that `torch.autograd.grad` asks for torch gives no answer but an error, which takes longer than a small
    graph. A leaf that one pass has asked for is therefore taken to be asked for by the next `PASSES`, too: a gradient
    too many is computed at worst.
    """

    def __init__(self, operands: Sequence[Operand]) -> None:
        self._sure = [one.refusal is None for one in operands]
        self._last = [False] * len(operands)
        self._passes = 0

    def by(self, edges: Sequence[tuple[Any, int]]) -> list[bool]:
        """Return whether the running pass asks for each operand, given the edges of the node."""
        afresh, before = self._passes == 0, self._last
        self._passes = (self._passes + 1) % PASSES
        self._last = [
            (sure and last and not afresh) or leads_to_a_result(edge[0])
            for sure, last, edge in zip(self._sure, before, edges, strict=True)
        ]
        return self._last
