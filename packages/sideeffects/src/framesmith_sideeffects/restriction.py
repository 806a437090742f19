"""Nested bodies: parts of a trace, such as the body of a loop, with restricted mutations."""

from __future__ import annotations

from dataclasses import dataclass, field

from framesmith_sideeffects.protocol import Restorable, TracedValue, is_new


class MutationRefused(TypeError):
    """A mutation that a nested body may not make. `body` is its name."""

    def __init__(self, body: str, what: str) -> None:
        super().__init__(f"{body} may not change {what}")
        self.body = body


class ChangedAcrossCall(MutationRefused):
    """An object changes again after a call that may raise: it would have both changes before the call, or none."""

    def __init__(self, what: str) -> None:
        super().__init__("what follows a call that may raise", f"{what} again")


class UsedAcrossCall(MutationRefused):
    """An object is used after a call that changes it: its state is known only when the compiled code runs."""

    def __init__(self, what: str) -> None:
        super().__init__("what follows a call that changes it", f"or read {what}")


class NotMadeHere(TypeError):
    """A replay needs an object that `maker` makes when the compiled code runs."""

    def __init__(self, maker: TracedValue) -> None:
        super().__init__(f"an object is needed that a {described(maker)} makes")
        self.maker = maker


@dataclass(frozen=True, slots=True)
class Borrowed:
    """A container that a body has changed, its state before, and why the change is refused unless it is undone."""

    container: Restorable
    before: object
    why: str

    def is_undone(self) -> bool:
        """Whether the container is as it was before."""
        return self.container.saved() == self.before


@dataclass(frozen=True, slots=True)
class NestedBody:
    """A body being traced. `older`: ids of values tracked before it; `open_to`: ids of values that it may change.

    `borrowed`: other values that it has changed, by id; it has to restore them.
    """

    name: str
    older: frozenset[int]
    open_to: frozenset[int]
    borrowed: dict[int, Borrowed] = field(default_factory=dict)

    def why_refused(self, value: TracedValue) -> str | None:
        """The reason why the body may not change a tracked value, or None."""
        if id(value) in self.open_to:
            return None
        if is_new(value) and id(value) not in self.older:
            return None
        return f"a {described(value)}, which is older than it"

    def borrows(self, value: TracedValue, why: str) -> bool:
        """Keep the state of a value that the body is about to change; False where the value has no state to keep."""
        if not isinstance(value, Restorable):
            return False
        if id(value) not in self.borrowed:
            self.borrowed[id(value)] = Borrowed(value, value.saved(), why)
        return True


def described(value: TracedValue) -> str:
    """The class and the source of a value, for messages."""
    cls = None if value.mutation is None else value.mutation.cls
    name = type(value).__name__ if cls is None else cls.__name__
    return name if value.source is None else f"{name} from {value.source.name}"
