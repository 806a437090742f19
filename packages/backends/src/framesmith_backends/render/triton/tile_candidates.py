"""The configurations of a kernel that are worth measuring: the rule's own, and a few that differ in one thing each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, zip_longest

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import loads
from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.ir.symbolic.size import hint
from framesmith_backends.render.triton.kernel import config_by_rule, in_no_order, warps_of
from framesmith_backends.render.triton.tile import WARP, Axis, Config, Tile, covering, holds_row
from framesmith_backends.render.triton.tile_rules import LARGEST_BLOCK, LONGER_ROWS, ROW_BLOCK, most_scanned
from framesmith_backends.schedule.kernels.loops import read_once

#: So many configurations of a kernel are measured, the rule's among them.
MOST_CONFIGS = 6
#: A program has no fewer elements, and no more; a thread no more, and no more bytes of what it reads at once.
LEAST_ELEMENTS, MOST_ELEMENTS, MOST_PER_THREAD, MOST_BYTES_PER_THREAD = 128, 1 << 15, 32, 256
#: Warps of a program: more where the rule has more.
MOST_WARPS = 16
#: The shortest side of a tile that is transposed.
LEAST_SIDE = 16


def configs_of(kernel: Kernel) -> list[Config]:
    """The configurations in which a kernel of fixed sizes is measured, the rule's first, or that alone."""
    kernel = in_no_order(kernel)
    rule = config_by_rule(kernel)
    if not rule.tile.axes:
        return [rule]
    tiles = (Config(tile, warps_of(kernel, tile)) for tile in _tiles(kernel, rule.tile))
    warps = (replace(rule, warps=warps) for warps in (rule.warps * 2, rule.warps // 2))
    other = [one for pair in zip_longest(tiles, warps) for one in pair if one is not None]
    fine = [one for one in other if _is_fine(kernel, one, rule)]
    past = [replace(rule, past_l1=True)] if _has_use_for_l1(kernel, rule.tile) else []
    return [rule, *[*dict.fromkeys((*past, *fine))][: MOST_CONFIGS - 1]]


def _is_fine(kernel: Kernel, form: Config, rule: Config) -> bool:
    """Whether threads have enough to do, and few enough registers are asked of each."""
    elements = form.tile.elements
    if form == rule or not LEAST_ELEMENTS <= elements <= MOST_ELEMENTS:
        return False
    if not 1 <= form.warps <= max(MOST_WARPS, rule.warps) or WARP * form.warps > elements:
        return False
    per_thread = elements // (WARP * form.warps)
    if form.tile != rule.tile and per_thread <= rule.tile.elements // (WARP * rule.warps):
        return True
    read = max(sum(DTYPES[load.dtype].itemsize for load in loads(*one.values)) for one in kernel.passes)
    most = MOST_PER_THREAD if form.tile != rule.tile else MOST_PER_THREAD // 2
    return per_thread <= most and per_thread * read <= MOST_BYTES_PER_THREAD


def _has_use_for_l1(kernel: Kernel, tile: Tile) -> bool:
    """Whether some reads take each element once, and lanes read other elements that are read again."""
    once = read_once(kernel)
    read = dict.fromkeys(chain(*(loads(*one.values) for one in kernel.passes)))
    return bool(once) and any(
        load not in once and not index.variables(load.index[0]).isdisjoint(tile.variables) for load in read
    )


def _tiles(kernel: Kernel, tile: Tile) -> Iterator[Tile]:
    lane = kernel.lane
    assert lane is not None
    if kernel.down:
        return _of_rows_in_turn(kernel, tile)
    if lane in kernel.row:
        return _of_rows(kernel, tile)
    return _of_columns(kernel, tile) if kernel.row and not kernel.steps else _of_points(kernel, tile)


def _of_points(kernel: Kernel, tile: Tile) -> Iterator[Tile]:
    """Lanes without the loop between them that the rule takes; larger and smaller parts of the loops."""
    lane = kernel.lane
    if lane is not None and tile.axes[-1].var is not lane:
        yield _without_inner(tile, lane)
    first, last = tile.axes[0], tile.axes[-1]
    if len(tile.axes) == 1:
        yield from _with_blocks(tile, [(last.block * 2,), (last.block // 2,)])
    elif tile.flat:
        rest = [axis.block for axis in tile.axes[1:]]
        yield from _with_blocks(tile, [(first.block * 2, *rest), (first.block // 2, *rest)])
    else:
        a, b = first.block, last.block
        yield from _with_blocks(tile, [(a * 2, b), (a, b * 2), (a * 2, b * 2), (a // 2, b // 2)], LEAST_SIDE)


def _without_inner(tile: Tile, lane: Var) -> Tile:
    """The tile with as many more lanes, or lines, as elements lay between lanes."""
    *rest, inner = tile.axes
    more = Axis(lane, min(rest[-1].block * inner.block, covering(lane.size)))
    return Tile((more,)) if len(rest) == 1 else Tile((Axis(rest[0].var, rest[0].block * inner.block), more), flat=True)


def _of_rows(kernel: Kernel, tile: Tile) -> Iterator[Tile]:
    """More and fewer rows; a long row in blocks instead of whole, or whole instead of in blocks; other blocks."""
    lane, block = tile.axes[-1].var, tile.axes[-1].block
    most = most_scanned(kernel) if kernel.has_scans else max(LONGER_ROWS.values())
    if not holds_row(kernel, tile):
        yield from _of_blocks(tile, min(most, MOST_ELEMENTS))
        return
    if tile.flat:
        return
    several = tile.axes[0].block if len(tile.axes) > 1 else 1
    other = tile.axes[0].var if several > 1 else max(kernel.outer, key=lambda v: hint(v.size), default=None)
    for rows in (several * 2, several // 2):
        if other is not None and 1 <= rows <= covering(other.size):
            yield Tile(((Axis(other, rows),) if rows > 1 else ()) + (tile.axes[-1],))
    if several == 1 and block > ROW_BLOCK // 2:
        yield Tile((Axis(lane, max(block // 4, ROW_BLOCK // 2)),))


def _of_blocks(tile: Tile, most: int) -> Iterator[Tile]:
    """Rows in other blocks: all of the loop that is cut, if a tile may have so many elements; longer, and shorter."""
    at = 0 if tile.flat else len(tile.axes) - 1
    blocks, cut = [axis.block for axis in tile.axes], tile.axes[at]
    for length, room in (
        (covering(cut.var.size), most),
        (cut.block * 2, min(most, 2 * LARGEST_BLOCK)),
        (cut.block // 2, min(most, 2 * LARGEST_BLOCK)),
    ):
        yield from _with_blocks(tile, [(*blocks[:at], length, *blocks[at + 1 :])], most=room)


def _of_columns(kernel: Kernel, tile: Tile) -> Iterator[Tile]:
    """More columns of fewer rows, fewer of more, and more or fewer rows alone."""
    most = most_scanned(kernel) if kernel.has_scans else MOST_ELEMENTS
    if len(tile.axes) == 1:
        yield from _with_blocks(tile, [(tile.axes[0].block * 2,), (tile.axes[0].block // 2,)])
        return
    r, c = (axis.block for axis in tile.axes)
    yield from _with_blocks(tile, [(r // 2, c * 2), (r * 2, c // 2), (r * 2, c), (r // 2, c)], most=most)


def _of_rows_in_turn(kernel: Kernel, tile: Tile) -> Iterator[Tile]:
    """More rows at a time, and fewer: as many as all of them are a multiple of."""
    (down,), row = kernel.down, tile.axes[-1]
    several = tile.axes[0].block if len(tile.axes) > 1 else 1
    for rows in (several * 2, several // 2):
        if rows >= 1 and hint(down.size) % rows == 0:
            yield Tile(((Axis(down, rows),) if rows > 1 else ()) + (row,))


def _with_blocks(
    tile: Tile, blocks: Sequence[tuple[int, ...]], least: int = 1, most: int = MOST_ELEMENTS
) -> Iterator[Tile]:
    """The tile with other blocks, where these have so many elements and are no longer than the loops."""
    for some in blocks:
        found = replace(tile, axes=tuple(Axis(axis.var, n) for axis, n in zip(tile.axes, some, strict=True)))
        fits = all(least <= axis.block <= max(covering(axis.var.size), 1) for axis in found.axes)
        if fits and found.elements <= most:
            yield found
