"""The line table's byte format (CPython Objects/locations.md): the source range of each code unit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

# Line, last line, column, last column, as `co_positions` gives them.
Range: TypeAlias = tuple[int | None, int | None, int | None, int | None]

_NONE, _LONG, _NO_COLUMNS, _ONE_LINE, _SHORT_COLUMNS = 15, 14, 13, 10, 80


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 64:
        out.append(64 | value & 63)
        value >>= 6
    out.append(value)
    return bytes(out)


def _signed_varint(value: int) -> bytes:
    return _varint((-value << 1) | 1 if value < 0 else value << 1)


def _payload(position: Range, delta: int) -> tuple[int, bytes]:
    """Code and bytes of the entry of a position, `delta` lines after the previous one."""
    line, end_line, column, end_column = position
    if column is None and end_column is None:
        return _NO_COLUMNS, _signed_varint(delta)
    if line == end_line and column is not None and end_column is not None:
        width = end_column - column
        if delta == 0 and column < _SHORT_COLUMNS and 0 <= width < 16:
            return column >> 3, bytes([(column & 7) << 4 | width])
        if 0 <= delta <= 2 and column < 128 and end_column < 128:
            return _ONE_LINE + delta, bytes([column, end_column])
    assert line is not None
    lines = max(0, (line if end_line is None else end_line) - line)
    columns = [0 if value is None else value + 1 for value in (column, end_column)]
    return _LONG, _signed_varint(delta) + _varint(lines) + _varint(columns[0]) + _varint(columns[1])


def write_line_table(runs: Iterable[tuple[Range | None, int]], firstlineno: int) -> bytes:
    """Encode runs of (position, number of code units).

    Entries hold at most eight units. A position's columns may be unknown; a position without a line is no position.
    """
    out = bytearray()
    line = firstlineno
    for position, units in runs:
        remaining = units
        if position is None or (start := position[0]) is None:
            while remaining > 0:
                count = min(remaining, 8)
                out.append(0x80 | _NONE << 3 | count - 1)
                remaining -= count
            continue
        _, end, column, end_column = position
        if line == start == end and units <= 8 and column is not None and end_column is not None:
            width = end_column - column
            if column < _SHORT_COLUMNS and 0 <= width < 16:  # most positions, so no call
                out.append(0x80 | column >> 3 << 3 | units - 1)
                out.append((column & 7) << 4 | width)
                continue
        code, payload = _payload(position, start - line)
        line = start
        while remaining > 0:
            count = min(remaining, 8)
            out.append(0x80 | code << 3 | count - 1)
            out += payload
            remaining -= count
            if remaining > 0:
                code, payload = _payload(position, 0)
    return bytes(out)
