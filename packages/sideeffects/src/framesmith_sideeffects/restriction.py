"""Nested bodies: parts of a trace, of a loop say, that may not change everything the rest may; refused by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framesmith_sideeffects.protocol import TracedValue


class MutationRefused(TypeError):
    """A nested body changes what it may not change. `body` is its name."""

    def __init__(self, body: str, what: str) -> None:
        super().__init__(f"{body} may not change {what}")
        self.body = body


class NotMadeHere(TypeError):
    """An object is needed that is made elsewhere when the compiled code runs, by `maker`."""

    def __init__(self, maker: Any) -> None:
        super().__init__(f"an object is needed that a {described(maker)} makes")
        self.maker = maker


@dataclass(frozen=True, slots=True)
class NestedBody:
    """A body that is being traced. `older`: the ids of what was tracked before it; `open_to`: of what it may change."""

    name: str
    older: frozenset[int]
    open_to: frozenset[int]

    def why_refused(self, value: TracedValue) -> str | None:
        """What is wrong with changing a tracked value in the body; None when it may be changed: it was made there."""
        if id(value) in self.open_to:
            return None
        if value.mutation is not None and value.mutation.is_new and id(value) not in self.older:
            return None
        return f"a {described(value)}, which is older than it"


def described(value: TracedValue) -> str:
    """What messages call a value: its class and where it was found."""
    cls = None if value.mutation is None else value.mutation.cls
    name = type(value).__name__ if cls is None else cls.__name__
    return name if value.source is None else f"{name} from {value.source.name}"
