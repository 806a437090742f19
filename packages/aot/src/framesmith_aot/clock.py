"""The time that a trace takes, by the part of the training step that is traced."""

from __future__ import annotations

import time
from collections import defaultdict

from framesmith_aten.meta import StepPart


class PartClock:
    """Measures `seconds` by part: the time between one switch and the next belongs to the part of the first."""

    def __init__(self) -> None:
        self.seconds: defaultdict[StepPart, float] = defaultdict(float)
        self._part: StepPart | None = None
        self._since = 0.0

    def switch(self, part: StepPart | None) -> None:
        """Measure another part from now on."""
        if part != self._part:
            now = time.perf_counter()
            if self._part is not None:
                self.seconds[self._part] += now - self._since
            self._part, self._since = part, now

    def stop(self) -> None:
        self.switch(None)
