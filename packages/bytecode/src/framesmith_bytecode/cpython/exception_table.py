"""The exception table's byte format (CPython Objects/exception_handling_notes.txt): entries of variable-length ints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Entry(NamedTuple):
    """Code units [start, end) are protected by the handler at unit `target`."""

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


def read_exception_table(table: bytes) -> list[Entry]:
    """All entries, in order."""
    numbers: list[int] = []
    value = 0
    for byte in table:
        value = (value << 6) | (byte & 63)
        if not byte & 64:
            numbers.append(value)
            value = 0
    if len(numbers) % 4:
        raise ValueError(f"exception table of {len(table)} bytes ends inside an entry")
    fields = iter(numbers)
    return [
        Entry(start, start + length, target, depth_lasti >> 1, bool(depth_lasti & 1))
        for start, length, target, depth_lasti in zip(fields, fields, fields, fields, strict=True)
    ]


def _append(out: bytearray, value: int, first: int) -> None:
    shift = 0
    while value >> (shift + 6):
        shift += 6
    while shift:
        out.append(first | 64 | (value >> shift) & 63)
        first = 0
        shift -= 6
    out.append(first | value & 63)


def write_exception_table(entries: Iterable[Entry]) -> bytes:
    """Inverse of `read_exception_table`; entries must be sorted and disjoint."""
    out = bytearray()
    for entry in entries:
        _append(out, entry.start, 128)
        _append(out, entry.end - entry.start, 0)
        _append(out, entry.target, 0)
        _append(out, entry.depth << 1 | entry.lasti, 0)
    return bytes(out)
