"""The replay: bytecode that makes the live new objects of a trace and carries out its mutations, each once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from framesmith_sideeffects.changes import Change, ContentsChange
from framesmith_sideeffects.journal import Journal
from framesmith_sideeffects.liveness import CreationPlan, plan_creation
from framesmith_sideeffects.protocol import TracedContainer, TracedValue, is_new

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen


class Replay:
    """The replay of a journal into one piece of generated code.

    `make()` comes first; then the caller saves values that must be read before anything changes (stack and live
    variables); then `apply()`. Both leave the stack as it was. The journal may not change in between.
    """

    def __init__(self, journal: Journal[Any], codegen: Codegen) -> None:
        self.journal = journal
        self.codegen = codegen
        self.plan = plan_creation(journal.reached().values())

    def make(self) -> None:
        """Make every object whose identity matters (mutable ones, and others used twice), each into a temporary."""
        shared = _shared(self.journal, self.plan)
        for value in self.plan.order:
            if is_new(value) or (id(value) in shared and value.source is None):
                self._make(value)

    def _make(self, value: TracedValue) -> None:
        self.journal.check_made_here(value)
        if id(value) in self.plan.made_empty:
            assert isinstance(value, TracedContainer)
            value.reconstruct_empty(self.codegen)
        else:
            value.reconstruct(self.codegen)
        self.codegen.store_temporary(value)

    def apply(self) -> None:
        """Carry out all mutations: first push the operands of all, those of the first change on top."""
        changes = self.pending()
        for change in reversed(changes):
            change.push(self.codegen)
        for change in changes:
            change.apply(self.codegen)

    def pending(self) -> list[Change]:
        """The changes to carry out: first the contents of containers made empty."""
        filling: list[Change] = [
            ContentsChange(value, 0, made_empty=True) for value in self.plan.order if id(value) in self.plan.made_empty
        ]
        return filling + self.journal.changes()


def _shared(journal: Journal[Any], plan: CreationPlan) -> set[int]:
    """Ids of compound values used more than once, which are made once."""
    uses: dict[int, int] = {}
    for value in journal.uses(plan.order):
        uses[id(value)] = uses.get(id(value), 0) + 1
    return {id(value) for value in plan.order if uses.get(id(value), 0) > 1 and any(True for _ in value.referents())}
