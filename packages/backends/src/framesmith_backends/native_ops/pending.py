"""Machine code that a graph's native operators need, where it is known when the graph is written."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from torch import fx

from framesmith_aten.meta import Key

#: The machine code of the operator that a node calls, perhaps still being made.
CODE: Key[Future[Any] | None] = Key("framesmith_machine_code")


def pending_code(gm: fx.GraphModule) -> list[Future[Any]]:
    """The machine code that the graph's first call waits for; it raises what failed there."""
    return [code for node in gm.graph.nodes if (code := CODE.get(node)) is not None]
