"""What a call that fakes took may do on real tensors: fail on their data, or be refused for what fakes do not see.

See docs/design/0006 for what follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.graph.builder import nodes_in
from framesmith_dynamo.tensor_calls.refusals import (
    NO_OVERLAP_AT_ALL,
    elements_in,
    why_not_written,
    why_outside,
    why_overflows,
)
from framesmith_dynamo.tensor_calls.run_time_errors import RESHAPING, may_fail, name_of

if TYPE_CHECKING:
    from framesmith_dynamo.trace_state import TraceState

EAGER_REFUSES = register_break(
    "refused-on-real-data",
    what="a tensor operation that torch may refuse although dtypes and shapes are right",
    why="it writes to memory it also reads, or uses a number or shape that its dtype or memory cannot hold",
    hint="clone the tensor first, or use a number that fits; in plain Python the same call may raise an error",
)
CANNOT_UNDO = register_break(
    "cannot-undo",
    what="one graph would change an input's history or shape, and hold an operation that can fail on its data",
    why="a graph that fails is run again as plain Python, so what it did must be undone",
    hint="change the input in place after, or before, a call of its own",
)

ITEM_ASSIGNMENTS = frozenset(["setitem", "__setitem__"])

#: What the trace has met: an operation that may fail, and a change nothing can undo.
FAILS, LASTS = ("real_runs", "fails"), ("real_runs", "lasts")
STORAGES = ("real_runs", "storages")


def check_real_run(state: TraceState, target: Any, node: fx.Node, result: Any) -> None:
    """Break where eager may refuse what fakes took. Mark what may fail on real data, so that it stays in the graph."""
    tensors = tensors_among(node.args, node.kwargs)
    changed = node.meta["changed"]
    elements = elements_in(target, node.args, node.kwargs)
    refused = why_overflows(tensors, elements, result) if elements else why_outside(target, result)
    if refused is None and changed:
        written, read = written_and_read(node, changed, tensors)
        exactly = name_of(target) in NO_OVERLAP_AT_ALL and read is tensors
        refused = why_not_written(written, read, exactly=exactly)
    if node.meta["resized"] and "out" in node.kwargs:
        refused = "the tensor given as `out` is resized"
    if refused is not None:
        raise GraphBreak(EAGER_REFUSES, f"{name_of(target)}: {refused}")
    if may_fail(target, tensors):
        node.meta["may_fail"] = node.meta["impure"] = state.memo[FAILS] = True
    if changed and lasts(state, target, changed):
        state.memo[LASTS] = True
    if FAILS in state.memo and LASTS in state.memo:
        raise GraphBreak(CANNOT_UNDO, name_of(target))


def tensors_among(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The fakes of the nodes among graph arguments, containers opened."""
    fakes = [node.meta["example_value"] for node in nodes_in(args, kwargs)]
    return [fake for fake in fakes if isinstance(fake, torch.Tensor)]


def written_and_read(
    node: fx.Node, changed: Sequence[Any], tensors: Sequence[torch.Tensor]
) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
    """The tensors a call wrote to, and those it read.

    All views of one memory are found changed; the first argument is then meant. Of an assignment to an item without
    index tensors, it is the view of the items.
    """
    if not any(tensor is tensors[0] for tensor in changed):
        return [tensor for tensor in changed if isinstance(tensor, torch.Tensor)], tensors
    if name_of(node.target) not in ITEM_ASSIGNMENTS or nodes_in([node.args[1]], {}):
        return tensors[:1], tensors
    items: Any = node.args[1]
    return [tensors[0][items]], tensors[1:]


def lasts(state: TraceState, target: Any, changed: Sequence[Any]) -> bool:
    """Whether a change of these tensors is one of an input, and more than one of its elements."""
    if name_of(target) not in RESHAPING:
        wants = [tensor for tensor in changed if isinstance(tensor, torch.Tensor) and tensor.requires_grad]
        if not wants or not torch.is_grad_enabled():
            return False
        changed = wants
    storages = input_storages(state)
    return any(tensor.untyped_storage()._cdata in storages for tensor in changed if isinstance(tensor, torch.Tensor))


def input_storages(state: TraceState) -> set[int]:
    """The fake storages of the graph's inputs so far."""
    refs = state.builder.inputs
    known: tuple[int, set[int]] | None = state.memo.get(STORAGES)
    if known is None or known[0] != len(refs):
        known = state.memo[STORAGES] = (len(refs), {ref.fake.untyped_storage()._cdata for ref in refs})
    return known[1]
