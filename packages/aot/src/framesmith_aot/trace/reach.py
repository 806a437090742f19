"""Which results' gradients can reach which inputs, read off autograd's graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def reaching(roots: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> list[frozenset[int]]:
    """For each leaf the positions of the roots it takes part in."""
    wanted = {id(leaf): index for index, leaf in enumerate(leaves)}
    found: list[set[int]] = [set() for _ in leaves]
    for position, root in enumerate(roots):
        for variable in _leaves_of(root.grad_fn):
            if id(variable) in wanted:
                found[wanted[id(variable)]].add(position)
    return [frozenset(positions) for positions in found]


def _leaves_of(node: Any) -> list[torch.Tensor]:
    leaves: list[torch.Tensor] = []
    pending, seen = [node], {node}
    while pending:
        for source, _ in pending.pop().next_functions:
            if source is None or source in seen:
                continue
            seen.add(source)
            if hasattr(source, "variable"):
                leaves.append(source.variable)
            else:
                pending.append(source)
    return leaves
