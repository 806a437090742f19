"""The models or kernels, candidates, modes and types that a run measures; finished rows are stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.candidates import available
from benchmarks.harness.registry import TYPES
from benchmarks.harness.timing import Row
from benchmarks.models.zoo import MODES, Model, select


@dataclass(frozen=True)
class Selection:
    """The selection of the command line; `keep` is called with each case's rows as they come."""

    only: str = "*"
    candidates: tuple[str, ...] = ()
    modes: tuple[str, ...] = MODES
    dtypes: tuple[str, ...] = TYPES
    rounds: int | None = None
    floor: bool = False
    keep: Callable[[list[Row]], None] = lambda rows: None

    def cases(self) -> Iterator[tuple[Model, str, str]]:
        """Every model, mode and type asked for that the registry has."""
        for row in select(self.only):
            for mode in row.modes:
                for dtype in row.dtypes:
                    if mode in self.modes and dtype in self.dtypes:
                        yield row, mode, dtype

    def names(self, row: Model, mode: str, dtype: str) -> list[str]:
        """The candidates of a case: OpenVINO for float32 inference of rows that ask for it."""
        every = available()
        if row.openvino and mode == "inference" and dtype == "float32":
            every.append("openvino")
        return self.among(every)

    def rounds_or(self, usual: int) -> int:
        """Those asked for, or as many as the suite takes by itself."""
        return self.rounds or usual

    def asked(self) -> dict[str, Any]:
        """All but where rows are kept, to make the same selection of in another process."""
        made = dataclasses.asdict(dataclasses.replace(self, keep=None))  # type: ignore[arg-type]
        return {name: value for name, value in made.items() if name != "keep"}

    def among(self, candidates: Iterable[str]) -> list[str]:
        """Those asked for."""
        return [name for name in candidates if not self.candidates or name in self.candidates]


def title(row: Model, mode: str, dtype: str) -> str:
    """The case as tables call it."""
    return f"{row.name}, {mode}, {dtype}"
