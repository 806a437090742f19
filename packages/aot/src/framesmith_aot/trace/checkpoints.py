"""Tensors that autograd saves within a checkpoint.

Note [Checkpoints]: eager mode's checkpoint saves nothing of what autograd would save in it: the backward pass runs the
function again. The tracer runs a checkpoint's calls once, and packs what autograd saves there, as torch does. So no
later write is an error, and each read in the backward pass is a node of the checkpoint (`CHECKPOINT_PATH`). The
partition replaces what such nodes read by copies of the checkpoint's nodes (`partition/checkpoints.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import fx

from framesmith_aot.trace import functional
from framesmith_aten.graphs.nodes import view_root
from framesmith_aten.meta import CHECKPOINT_PATH, PHASE, READ_AGAIN, REENTRANT, Checkpoint
from framesmith_aten.tracing.tracer import GraphTracer
from framesmith_guards.torch_adapter import aten


@contextmanager
def packing(tracer: GraphTracer, checkpoint: Checkpoint | None) -> Iterator[None]:
    """Inside, autograd saves tensors of a checkpoint, if there is one: see Note [Checkpoints]."""
    if checkpoint is None:
        yield
        return
    unpack = partial(_read, tracer, checkpoint)
    with torch.autograd.graph.saved_tensors_hooks(functional.snapshot, unpack):
        yield


def _read(tracer: GraphTracer, checkpoint: Checkpoint, saved: torch.Tensor) -> torch.Tensor:
    """Return a saved tensor by an alias of its own, whose readers belong to the checkpoint."""
    value = functional.current_value(saved)
    with functional.below():
        shown = aten.alias.default(value)
    node = tracer.node_of(shown)
    CHECKPOINT_PATH.set(node, checkpoint.path)
    if any(one.reentrant for one in checkpoint.outwards()):
        REENTRANT.set(node, True)
    return functional.wrap(shown)


def mark_readers(graph: fx.Graph) -> None:
    """Give the readers of saved tensors the path of the checkpoint instead of the aliases, and mark what they read."""
    for node in graph.find_nodes(op="call_function", target=aten.alias.default):
        path = CHECKPOINT_PATH.get(node)
        if path is None or PHASE.get(node) != "backward":
            continue
        for reader in node.users:
            if reader.op != "output":
                CHECKPOINT_PATH.set(reader, path)
                reader.meta |= {REENTRANT.name: True} if REENTRANT.on(node) else {}
        [saved] = node.all_input_nodes
        if node.users:
            READ_AGAIN.set(view_root(saved), True)
        node.replace_all_uses_with(saved)
        graph.erase_node(node)
