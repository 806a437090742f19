"""The tensors that eager mode saves for backward, read from autograd's nodes.

The user sees them: a saved tensor must not be mutated before the backward pass, and a node that saved one cannot run
twice. A compiled graph saves other tensors, often fewer, and raises the same errors. What attributes of a Function's
`ctx` keep counts as saved: eager mode reads the mutated tensor, which a compiled graph cannot do, so it raises.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from framesmith_aten.graphs.autograd_functions import HELD_TENSORS
from framesmith_aten.layouts import storage_id
from framesmith_aten.nested import tensors_in

#: Prefixes of the attributes of autograd's nodes that show saved values; only tensors have the second one. Reading a
#: saved symbolic number would specialise it.
PREFIX, RAW_PREFIX = "_saved_", "_raw_saved_"

#: In autograd's error for a saved tensor that was mutated.
MODIFIED_IN_PLACE = "modified by an inplace operation"

#: In its errors for an operator without a derivative: torch's, and custom ones.
NO_DERIVATIVE = ("is not implemented", "no autograd formula was registered")

#: In its error for a saved view of a multi-output operator whose base was mutated.
VIEW_MODIFIED = "or another view of its base has been modified inplace"

#: In its error for a history whose saved tensors an earlier pass, within the graph, has freed.
FREED = "backward through the graph a second time"

#: In each error of a backward pass that eager mode raises too.
REFUSED_BY_AUTOGRAD = (MODIFIED_IN_PLACE, VIEW_MODIFIED, FREED, *NO_DERIVATIVE)


@dataclass(frozen=True)
class SavedByEager:
    """The slots and inputs that some of autograd's nodes save, by position, and whether they save `anything`."""

    anything: bool = False
    slots: tuple[int, ...] = ()
    inputs: tuple[int, ...] = ()


NOTHING_SAVED = SavedByEager()


def saved_by(nodes: Collection[Any], slots: Mapping[int, int], inputs: Mapping[int, int]) -> SavedByEager:
    """Return what `nodes` save. `slots` and `inputs`: positions by `framesmith_aten.layouts.storage_id`."""
    storages = {storage_id(tensor) for node in nodes for tensor in _saved(node)}
    found = [sorted(where[key] for key in storages if key in where) for where in (slots, inputs)]
    # The node of a mutation through a view holds another without showing it.
    runs_once = any(type(node).__name__ == "CopySlices" for node in nodes)
    return SavedByEager(bool(storages) or runs_once, tuple(found[0]), tuple(found[1]))


def _saved(node: Any) -> Iterator[torch.Tensor]:
    names = _names(type(node))  # type: ignore[arg-type]
    of_python = isinstance(node, torch.autograd.function.BackwardCFunction)
    for name in ("saved_tensors", HELD_TENSORS, *names) if of_python else names:
        try:
            yield from tensors_in(getattr(node, name, None))
        except RuntimeError:  # it was mutated since: the backward pass raises
            continue


@functools.cache
def _names(kind: Any) -> tuple[str, ...]:
    names = dir(kind)
    return tuple([name for name in names if name.startswith(PREFIX) and name.replace(PREFIX, RAW_PREFIX) in names])
