"""What a compiled node's saved tensors are still needed for after a backward pass that reached some of its outputs.

Note [One node, several backward passes]: in eager, `a.backward()` frees what lies on a's way back and leaves the
rest, so that `b.backward()` still works where b's way is another. A compiled graph is one node, whose saved tensors
the engine frees at the first pass. The node therefore keeps them while an output is waiting whose way back has not
been gone, and lets go as soon as none is: at once for a loss and the logits it was computed from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith_aot.runtime.backward import BackwardGraph


@dataclass(frozen=True)
class Retention:
    """For each tangent: `covers`, tangents whose whole way back is part of its own; `needs`, saved tensors on it."""

    covers: tuple[frozenset[int], ...]
    needs: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Kept:
    """Saved tensors kept for the outputs `waiting`, with their version counters when they were first read."""

    waiting: frozenset[int]
    saved: Sequence[torch.Tensor] | None
    versions: tuple[int, ...]


def retention(whole: BackwardGraph) -> Retention:
    """Read off the backward graph which ways back there are."""
    tangents = whole.tangents()
    ways = [_reached([tangent], forward=True) - {tangent} for tangent in tangents]
    saved = [node for node in whole.graph.nodes if node.op == "placeholder"][: whole.saved]
    used = [_reached(way, forward=False) for way in ways]
    return Retention(
        tuple(frozenset(k for k, other in enumerate(ways) if other <= way) for way in ways),
        tuple(tuple(index for index, node in enumerate(saved) if node in nodes) for nodes in used),
    )


def _reached(start: Iterable[fx.Node], *, forward: bool) -> set[fx.Node]:
    """The nodes themselves and all that depend on them (forward) or that they depend on; the output node left out."""
    found: set[fx.Node] = set()
    pending = list(start)
    while pending:
        node = pending.pop()
        if node not in found and node.op != "output":
            found.add(node)
            pending.extend(node.users if forward else node.all_input_nodes)
    return found


def saved_for(ctx: Any, tangents: Sequence[torch.Tensor | None], rules: Retention) -> Sequence[torch.Tensor]:
    """The saved tensors for a pass in which these tangents came; keeps them on `ctx` while outputs are waiting.

    Raises RuntimeError where eager would: everything on the way was freed by an earlier pass, or changed in place.
    """
    present = [index for index, tangent in enumerate(tangents) if tangent is not None]
    kept: Kept | None = getattr(ctx, "kept", None)
    if kept is None or kept.saved is None:
        saved: Sequence[torch.Tensor] = ctx.saved_tensors
        waiting = frozenset(range(len(tangents))) if kept is None else kept.waiting
        versions = tuple(tensor._version for tensor in saved)
    else:
        saved, waiting, versions = kept.saved, kept.waiting, kept.versions
        _check_versions(saved, versions, {index for k in present for index in rules.needs[k]})
    waiting = waiting.difference(*(rules.covers[k] for k in present))
    ctx.kept = Kept(waiting, saved if waiting else None, versions)
    return saved


def _check_versions(saved: Sequence[torch.Tensor], versions: Sequence[int], needed: Iterable[int]) -> None:
    for index in needed:
        tensor = saved[index]
        if tensor._version != versions[index]:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"a tensor of shape {list(tensor.shape)} is at version {tensor._version}; expected version "
                f"{versions[index]} instead"
            )
