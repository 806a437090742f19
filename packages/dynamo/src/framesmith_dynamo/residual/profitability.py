"""Whether the graph before a loop that breaks is worth an entry, given that the loop runs eagerly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from framesmith_aten.layouts import storage_id
from framesmith_aten.meta import MODE_CHANGE
from framesmith_aten.nested import tensors_in
from framesmith_aten.recording import effects_of
from framesmith_bytecode import OPS
from framesmith_dynamo.graph.builder import fake_of_node
from framesmith_dynamo.residual.continuations import can_recur

if TYPE_CHECKING:
    from torch import fx

    from framesmith_dynamo.interpreter.decoded import DecodedCode


def is_unprofitable(code: DecodedCode, graph: fx.Graph, index: int) -> bool:
    """Whether the frame computes nothing before the `for` loop at instruction `index`, which breaks in every call."""
    instrs = code.instrs
    if instrs[index].op != "FOR_ITER" or not can_recur(code, index + 1, index):
        return False
    if any(OPS[instr.op].flow != "next" for instr in instrs[:index]):
        return False
    return not any(_computes(node) for node in graph.nodes)


def _computes(node: fx.Node) -> bool:
    """Whether a call does more than return views of its operands or create tensors without any."""
    if node.op not in ("call_function", "call_method") or MODE_CHANGE.on(node):
        return False
    if effects_of(node).forbid_removal:
        return True
    shown = {place for operand in node.all_input_nodes for place in _storages(operand)}
    return bool(shown) and not all(place in shown for place in _storages(node))


def _storages(node: fx.Node) -> list[int]:
    """Return the storages of a node's results."""
    strided = (fake for fake in tensors_in(fake_of_node(node)) if fake.layout is torch.strided)
    return [storage_id(fake) for fake in strided]
