"""The function transforms around what is traced, as a chain: what a body asks of the transforms that it runs under."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

#: `grad` and `vjp`; `jvp`; `vmap`; a Function's rule for vmap, which runs outside of the `vmap` that asks for it.
Kind = Literal["grad", "jvp", "vmap", "rule"]


@dataclass(frozen=True, eq=False)
class Level:
    """A transform whose body is being traced, and the one around it."""

    kind: Kind
    outer: Level | None

    def outwards(self) -> Iterator[Level]:
        """Yield this level and those around it."""
        level: Level | None = self
        while level is not None:
            yield level
            level = level.outer
