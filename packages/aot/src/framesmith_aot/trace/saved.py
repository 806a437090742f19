"""What eager mode keeps for the backward pass, as autograd's own nodes tell.

The user notices: a tensor that is kept must not be changed before the backward pass, and what kept something cannot be
gone through twice. A compiled graph keeps other tensors, often fewer, and refuses what eager mode refuses all the same.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from framesmith_aten.layouts import storage_id
from framesmith_aten.operators import tensors_in

#: How autograd's nodes name what they keep; of a tensor they also show, with the second name, how they keep it. What
#: else they keep is numbers, of which a symbol would be asked what it is at present.
PREFIX, RAW_PREFIX = "_saved_", "_raw_saved_"

#: What autograd says of a tensor that it kept and finds changed.
MODIFIED_IN_PLACE = "modified by an inplace operation"

#: What it says of an operator without a derivative: one of torch's, and one of the user's.
NO_DERIVATIVE = ("is not implemented", "no autograd formula was registered")

#: What it says of a kept view, one of several that an operator gives, whose base has changed.
VIEW_MODIFIED = "or another view of its base has been modified inplace"

#: The words of each error of a backward pass that is the program's.
REFUSED_BY_AUTOGRAD = (MODIFIED_IN_PLACE, VIEW_MODIFIED, *NO_DERIVATIVE)


@dataclass(frozen=True)
class SavedByEager:
    """What some of autograd's nodes keep: the slots and inputs among it by position, and whether it is `anything`."""

    anything: bool = False
    slots: tuple[int, ...] = ()
    inputs: tuple[int, ...] = ()


NOTHING_SAVED = SavedByEager()


def saved_by(nodes: Collection[Any], slots: Mapping[int, int], inputs: Mapping[int, int]) -> SavedByEager:
    """What `nodes` keep. `slots` and `inputs` give positions by storage (see `framesmith_aten.layouts.storage_id`)."""
    storages = {storage_id(tensor) for node in nodes for tensor in _saved(node)}
    found = [sorted(where[key] for key in storages if key in where) for where in (slots, inputs)]
    return SavedByEager(bool(storages) or any(map(_runs_once, nodes)), tuple(found[0]), tuple(found[1]))


def _runs_once(node: Any) -> bool:
    """Whether a node keeps another, which it does not show: that of a change through a view."""
    return type(node).__name__ == "CopySlices"


def _saved(node: Any) -> Iterator[torch.Tensor]:
    names = _names(type(node))  # type: ignore[arg-type]
    of_python = isinstance(node, torch.autograd.function.BackwardCFunction)
    for name in ("saved_tensors", *names) if of_python else names:
        try:
            yield from tensors_in(getattr(node, name))
        except RuntimeError:  # it was changed since: the backward pass itself says so
            continue


@functools.cache
def _names(kind: Any) -> tuple[str, ...]:
    names = dir(kind)
    return tuple([name for name in names if name.startswith(PREFIX) and name.replace(PREFIX, RAW_PREFIX) in names])
