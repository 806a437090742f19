"""A clock for tests of autotuning: each trial's candidate of some number is the fastest."""

from __future__ import annotations

from collections.abc import Sequence

from framesmith_backends.autotune.autotuner import Times
from framesmith_backends.autotune.tiles import TileTrial
from framesmith_backends.ir.program import Program
from framesmith_backends.target import GPU_CAPABILITY, GPU_PROCESSORS


class Preferring:
    """Report `seconds` for the other candidate numbered `which`, half of the baseline's; the rest are slow.

    With `blocks_alone` candidates that differ from the rule's in warps and caches do not count: interpreters have none.
    `asked` are the trials that it was given, `preferred` says for those that have such a candidate which one that is.
    """

    capability, processors = GPU_CAPABILITY, GPU_PROCESSORS

    def __init__(self, which: int, blocks_alone: bool = False) -> None:
        self.which, self.blocks_alone = which, blocks_alone
        self.seconds = 5e-6
        self.about: tuple[object, ...] = ("a device", which)
        self.asked: list[TileTrial] = []
        self.preferred: dict[str, str] = {}
        self.error: Exception | None = None
        self.free = True

    def is_free(self) -> bool:
        return self.free

    def times(self, trials: Sequence[TileTrial], program: Program) -> list[Times | Exception]:
        self.asked += trials
        if self.error is not None:
            return [self.error] * len(trials)
        return [self._times(trial) for trial in trials]

    def _times(self, trial: TileTrial) -> Times:
        found = {trial.baseline: 1e-5, **dict.fromkeys(trial.others, 2e-5)}
        rule, *others = trial.candidates
        if self.blocks_alone:
            others = [one for one in others if one.tile != rule.tile]
        if self.which < len(others):
            self.preferred[trial.name] = name = others[self.which].text()
            found[name] = self.seconds
        return found
