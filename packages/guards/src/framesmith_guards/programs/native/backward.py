"""The usual pass of an autograd node of a compiled graph, guarded and run in C."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from framesmith_guards.programs.native.probing import extension, undisturbed, why_no_tensors
from framesmith_guards.values.tensors import dispatch_keys

Layout = tuple[int, ...] | list[int]


@dataclass(frozen=True)
class UsualPass:
    """A compiled program for one pattern of absent tangents, and what it takes of an autograd node.

    `program` takes one list, which it empties: the first `saved` of the node's saved tensors (None: it saves nothing,
    and any number of passes may run), the tuple in the node's attribute `numbers` (None: it has none), and the present
    ones of `tangents`, each a plain tensor of that device with those strides; a list in their place has the dimensions
    by stride. `results` gives for each gradient its position among what `program` returns, or None. The attributes in
    `dropped` become None in the node's last pass.
    """

    program: Callable[[list[Any]], Sequence[Any]]
    saved: int | None
    numbers: str | None
    tangents: Sequence[tuple[torch.device, Layout] | None]
    results: Sequence[int | None]
    dropped: tuple[str, ...]


def guarded_pass(
    usual: UsualPass,
    otherwise: Callable[..., Any],
    unusual: tuple[Callable[[], object], ...],
    retained: Callable[[], object],
    arrange: Callable[[torch.Tensor, Any], torch.Tensor],
) -> Callable[..., Any] | None:
    """Return a method of an autograd node that runs `usual`, or where that does not apply `otherwise`; None without C.

    `usual` applies where the tangents are as it says, but for their strides, which `arrange` changes, and every
    callable in `unusual` returns something false. `retained` says whether the running pass retains its graph.
    """
    native, _ = extension()
    if native is None or why_no_tensors() is not None:
        return None
    call: Callable[..., Any] = native.BackwardCall(
        otherwise=otherwise,
        unusual=unusual,
        retained=retained,
        dropped=usual.dropped,
        arrange=arrange,
        program=usual.program,
        saved=-1 if usual.saved is None else usual.saved,
        numbers=usual.numbers,
        plain=torch.Tensor,
        tangents=tuple([None if one is None else (_plain_keys(one[0]), one[1]) for one in usual.tangents]),
        results=tuple([-1 if at is None else at for at in usual.results]),
    )
    return call


@functools.cache
def _plain_keys(device: torch.device) -> int:
    """Return the dispatch keys of tensors on a device that are neither lazy nor wrapped."""
    with undisturbed():
        return dispatch_keys(torch.empty(0, device=device))
