"""After a graph break: the breaking instruction runs for real, and a continuation function goes on behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from framesmith_dynamo.breaks import GraphBreak
    from framesmith_dynamo.output import Residual


def emit_break(residual: Residual, reason: GraphBreak) -> None:
    """Generate the end of residual code at a break."""
    raise reason
