"""Scans in Triton source: a tile of the row at once, and what is carried from one tile to the next."""

from __future__ import annotations

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.kernel import Scan
from framesmith_backends.ir.ops import SCANS
from framesmith_backends.render.triton.emit import emit, number_text, operation
from framesmith_backends.render.triton.state import Writing
from framesmith_backends.render.triton.tile import Axis


def start_of(w: Writing, s: Scan, along: Axis | None) -> str:
    """The value carried into the first tile; `along` is the axis of the tile that lies in the row."""
    others = [axis.var for axis in w.tile.axes if axis is not along]
    shape = w.tile.shape(others) or "[]"
    return w.fresh(f"tl.full({shape}, {_start(s)}, {DTYPES[s.value.dtype].triton})", w.here)


def _start(s: Scan) -> str:
    dtype = s.value.dtype
    return number_text(SCANS[s.kind].start(dtype), dtype)


def write_scan(w: Writing, s: Scan, carry: str | None, along: Axis | None) -> None:
    """Names the scan at the points of the tile; with a `carry` what came before is part of it, and goes on."""
    value, shape = emit(w, s.value), w.tile.shape(w.tile.variables)
    if shape is not None:
        value = f"tl.broadcast_to({value}, {shape})"
    if along is None:
        assert carry is not None
        w.line(f"{carry} = {_combined(s, carry, value)}")
        name = w.fresh(carry, w.here)
    else:
        mask = w.mask((along.var,)) if s.reverse else None
        if mask is not None:  # what is beyond the row comes first
            value = f"tl.where({mask}, {value}, tl.full([], {_start(s)}, {DTYPES[s.value.dtype].triton}))"
        at = w.tile.axes.index(along)
        name = w.fresh(f"fs.scan_{s.kind}({value}, {at}, {s.reverse})", w.here)
        if carry is not None:
            name = w.fresh(_combined(s, carry, name), w.here)
            last = f"{w.tile.lanes(along.var)} == {0 if s.reverse else along.block - 1}"
            w.line(f"{carry} = fs.element_at({name}, {last}, {at}, {len(w.tile.axes) > 1})")
    w.refs[s.name] = name
    w.ref_levels[s.name] = len(w.scopes) - 1


def _combined(s: Scan, before: str, value: str) -> str:
    """Both combined. Of equal extremes the later one is taken, which a zero's sign shows."""
    if s.kind in ("max", "min"):
        return f"fs.{'larger' if s.kind == 'max' else 'smaller'}({before}, {value})"
    return operation(SCANS[s.kind].combine, (before, value), s.value.dtype)
