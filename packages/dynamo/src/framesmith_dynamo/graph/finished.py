"""A finished graph and its inputs, as passed to the compiler."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import fx

from framesmith_aten.meta import LOCATION
from framesmith_guards import Location

if TYPE_CHECKING:
    from framesmith_guards import Source


@dataclass(frozen=True, slots=True)
class GraphInput:
    """One input of a compiled graph.

    `source`: where the caller's tensor or number is found; `example`: a fake tensor in its state before the trace, or a
    symbolic number.
    """

    source: Source
    example: Any


@dataclass(frozen=True, slots=True)
class FinishedGraph:
    """A graph ready to compile: its module, its inputs in placeholder order, and the positions of mutated inputs."""

    module: fx.GraphModule
    inputs: list[GraphInput]
    mutated_positions: list[int]

    @property
    def location(self) -> Location | None:
        """The location of its first operation in the user's program."""
        return next((LOCATION.of(node) for node in self.module.graph.nodes if LOCATION.get(node) is not None), None)


def placeholder_name(source_name: str) -> str:
    """Return a Python identifier derived from a source: `l_x_weight` for `L['x'].weight`."""
    words = re.findall(r"[A-Za-z0-9]+", source_name)
    return "_".join(words).lower() or "arg"
