"""Nested bodies: parts of a trace, such as the body of a loop, with restricted mutations."""

from __future__ import annotations

from dataclasses import dataclass

from framesmith_sideeffects.protocol import TracedValue, is_new


class MutationRefused(TypeError):
    """A mutation that a nested body may not make. `body` is its name."""

    def __init__(self, body: str, what: str) -> None:
        super().__init__(f"{body} may not change {what}")
        self.body = body


class NotMadeHere(TypeError):
    """A replay needs an object that `maker` makes when the compiled code runs."""

    def __init__(self, maker: TracedValue) -> None:
        super().__init__(f"an object is needed that a {described(maker)} makes")
        self.maker = maker


@dataclass(frozen=True, slots=True)
class NestedBody:
    """A body being traced. `older`: ids of values tracked before it; `open_to`: ids of values that it may change."""

    name: str
    older: frozenset[int]
    open_to: frozenset[int]

    def why_refused(self, value: TracedValue) -> str | None:
        """The reason why the body may not change a tracked value, or None."""
        if id(value) in self.open_to:
            return None
        if is_new(value) and id(value) not in self.older:
            return None
        return f"a {described(value)}, which is older than it"


def described(value: TracedValue) -> str:
    """The class and the source of a value, for messages."""
    cls = None if value.mutation is None else value.mutation.cls
    name = type(value).__name__ if cls is None else cls.__name__
    return name if value.source is None else f"{name} from {value.source.name}"
