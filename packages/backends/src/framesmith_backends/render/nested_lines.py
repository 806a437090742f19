"""Text written out of order: a list of lines may hold, where they will stand, lists that are filled later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def flat(lines: Iterable[object]) -> Iterator[str]:
    """The lines in order, those of the lists among them included."""
    for line in lines:
        if isinstance(line, str):
            yield line
        elif isinstance(line, list):
            yield from flat(line)
