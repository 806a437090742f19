"""The tile of a kernel by rule: some of its loops, and how much of each.

Lanes are along the last axis. Others make use of threads that short rows would leave idle, let a column be added up by
many, let what lies across be read by whole sectors, and hold rows of several loops.
"""

from __future__ import annotations

from collections.abc import Collection

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Load, loads
from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.ir.symbolic.size import Sym, hint, numel, surely_at_least
from framesmith_backends.render.triton.joined import joinable
from framesmith_backends.render.triton.tile import WARP, Axis, Tile, covering
from framesmith_backends.schedule.kernels.loops import memory_indices
from framesmith_backends.target import BYTES_IN_TURN, GPU_PROCESSORS, LEAST_COLUMNS

# Rows up to this long are held in registers at once, or up to the other where several passes read this many elements of
# them at most; longer ones go in blocks, of these sizes.
WHOLE_ROW, LONGER_ROWS, ROW_BLOCK, LARGEST_BLOCK = 4096, {1: 32768, 2: 16384}, 2048, 8192
# Of a row that is scanned more is taken at once, as threads wait for each other in every block, but no more than fits
# into shared memory, through which values go that are read and written by other threads than those that scan.
WHOLE_SCAN, SCAN_BLOCK, SCAN_BYTES = 8192, 4096, 1 << 15
# A row that is gone through by several loops is held if the powers of two that cover these are no more than so many
# times as many elements.
MOST_IDLE = 2
# Rows of several loops that have fewer elements are no tile by themselves where there are rows enough.
LEAST_HELD = 256
# Elements that a program computes at once, if rows do not say; of shorter rows it takes several, of few such rows as
# many as a warp has threads.
LANE_BLOCK = 1024
# Lines that a program carries values along.
STEP_LANES = 128
# Where the number of lanes changes between calls, blocks are no smaller than this, whatever it was at first.
LEAST_BLOCK = 256
# Bytes of a tensor that a program reads at once where it takes rows in turn, at most.
STEP_BYTES = 8192
# Columns side by side, at most.
MOST_COLUMNS = 128
# Tiles that are transposed have sides like this.
SIDE = 32
# Rows that lie across memory: bytes of a sector, of which a program takes all; rows that it takes at most for that; and
# elements of them that it holds at most.
SECTOR, MOST_ACROSS, MOST_TRANSPOSED = 32, 16, 1 << 14
# A loop that accesses lie along has no fewer steps, else a transposed tile reads no more of a sector.
LEAST_ACROSS = 8
# A loop between neighbouring lanes has fewer steps than this.
MOST_BETWEEN = 32
# So many programs keep every processor of a GPU at work.
ENOUGH_PROGRAMS = 2 * GPU_PROCESSORS
# A processor of a GPU has so many programs at a time, and waits for memory while they have asked for fewer bytes; the
# narrow elements of rows take as long as others.
PROGRAMS_AT_ONCE, IN_FLIGHT, IN_FLIGHT_NARROW = 8, 1 << 15, 1 << 16


def tile_of(kernel: Kernel) -> Tile:
    """The tile of a program, by the strides and sizes of the kernel's loops."""
    lane = kernel.lane
    if lane is None:
        return Tile()
    if kernel.down:
        return _of_rows_in_turn(kernel, lane)
    if kernel.steps:
        return _of_steps(kernel, lane)
    if lane in kernel.row:
        return _of_rows(kernel, lane)
    return _of_columns(kernel, lane) if kernel.row else _of_points(kernel, lane)


def row_block(kernel: Kernel, lane: Var) -> int:
    """The elements of a row that are taken at once."""
    block = max(covering(lane.size), LEAST_BLOCK if isinstance(lane.size, Sym) else 1)
    longer = min(SCAN_BLOCK, most_scanned(kernel)) if kernel.has_scans else streamed(kernel)
    return block if block <= _longest_whole(kernel, lane) else min(block, longer)


def streamed(kernel: Kernel) -> int:
    """The elements that a program reads at once where it goes through a row in blocks: the fewer programs, the more."""
    programs = hint(numel(v.size for v in kernel.outer if v is not kernel.lane))
    if kernel.lane in kernel.outer:
        programs *= -(-hint(kernel.lane.size) // columns_of(kernel, kernel.lane))
    at_once = min(max(programs // GPU_PROCESSORS, 1), PROGRAMS_AT_ONCE)
    bytes_read = max(bytes_of_point(kernel), 1)
    in_flight = IN_FLIGHT_NARROW if kernel.lane in kernel.row and bytes_read < 4 else IN_FLIGHT
    wanted = in_flight // at_once // bytes_read
    return min(max(1 << wanted.bit_length() - 1, ROW_BLOCK), LARGEST_BLOCK)


def bytes_of_point(kernel: Kernel) -> int:
    """Bytes that the pass which reads most reads for a step along the row."""
    along = kernel.lane if kernel.lane in kernel.row else down_of(kernel)
    read = [{load for load in loads(*one.values) if along in _moving(load)} for one in kernel.passes]
    return max(sum(DTYPES[load.dtype].itemsize for load in some) for some in read)


def _longest_whole(kernel: Kernel, lane: Var) -> int:
    """The length up to which rows are held: read once, they need not be."""
    if kernel.has_scans:
        return most_scanned(kernel)
    if any(v.size != 1 for v in kernel.row if v is not lane):
        return 0  # other loops over the row go through it again in each pass
    through = sum(one.has_loop for one in kernel.passes)
    if through < 2 or (through == 2 and joinable(kernel, 0)):
        return WHOLE_ROW
    read = {load for one in kernel.passes for load in loads(*one.values) if lane in _moving(load)}
    return max(WHOLE_ROW, LONGER_ROWS.get(len(read), 0))


def most_scanned(kernel: Kernel) -> int:
    """The elements of a tile that has room in shared memory."""
    values = [value for one in kernel.passes for value in one.values]
    widest = max(DTYPES[e.dtype].itemsize for e in (*values, *loads(*values)))
    return min(WHOLE_SCAN, SCAN_BYTES // widest)


def _moving(load: Load) -> frozenset[Var]:
    return frozenset().union(*map(index.variables, load.index))


def _of_rows(kernel: Kernel, lane: Var) -> Tile:
    """Whole rows, several where they are short or lie across memory, or blocks of long ones."""
    across = _across(kernel, lane)
    if across is None and (loops := _of_loops(kernel, lane)) is not None:
        return loops
    block = row_block(kernel, lane)
    along = Axis(lane, block)
    if not kernel.outer or isinstance(lane.size, Sym):
        return Tile((along,))
    other, several, programs = _rows_across(kernel, block, *across) if across else _short_rows(kernel, block)
    rows = hint(numel(v.size for v in kernel.outer))
    while several > 1 and several * block > WARP and rows // several < programs:
        several //= 2
    if several <= 1:
        return Tile((along,))
    held = surely_at_least(block, lane.size) and several * block <= MOST_TRANSPOSED
    if not kernel.has_scans and not held:
        along = Axis(lane, min(block, LARGEST_BLOCK // several))  # a thread has registers for no more of what goes on
    return Tile((Axis(other, several), along))


def _of_loops(kernel: Kernel, lane: Var) -> Tile | None:
    """The tile of a row of several loops: all of it if it is short, else a block of the longest loop with all lanes.

    None where there is one loop, sizes change, rows are so short and many that a program takes several of them, or
    lanes alone fill a block.
    """
    others = [v for v in kernel.row if v is not lane and v.size != 1]
    if not others or kernel.has_scans or any(isinstance(v.size, Sym) for v in kernel.row):
        return None
    whole = Tile(tuple(Axis(v, covering(v.size)) for v in (*others, lane)), flat=True)
    count = hint(numel(v.size for v in kernel.row))
    if whole.elements <= min(WHOLE_ROW, MOST_IDLE * count):
        rows = hint(numel(v.size for v in kernel.outer))
        return None if count < LEAST_HELD and rows >= ENOUGH_PROGRAMS else whole
    longest, lanes = max(reversed(others), key=lambda v: hint(v.size)), covering(lane.size)
    block = min(streamed(kernel) // lanes, covering(longest.size))
    return Tile((Axis(longest, block), Axis(lane, lanes)), flat=True) if block > 1 else None


def _rows_across(kernel: Kernel, block: int, across: Var, itemsize: int) -> tuple[Var, int, int]:
    """The loop along which rows lie in memory, how many of it a program takes, and how many programs there shall be.

    Each row less of a sector is read again by so many programs: fewer programs than processors are worth it.
    """
    several = max(min(SECTOR // itemsize, MOST_ACROSS), LANE_BLOCK // block)
    room = max((most_scanned(kernel) if kernel.has_scans else MOST_TRANSPOSED) // block, 1)
    if kernel.has_scans or several <= 2 * room:
        several = min(several, room)  # of longer rows it takes as many, in blocks
    return across, min(several, covering(across.size)), GPU_PROCESSORS // several


def _short_rows(kernel: Kernel, block: int) -> tuple[Var, int, int]:
    """A loop over rows, how many of it a program takes, and how many programs there shall be.

    Preferably one over so many rows whose results lie beside each other.
    """
    several = LANE_BLOCK // block
    results = [store.index for one in kernel.passes for store in one.before]
    along = [v for v in kernel.outer if any(index.coefficient(ix, v) == 1 for ix in results)]
    near = next((v for v in along if hint(v.size) >= several), None)
    other = near or max(kernel.outer, key=lambda v: hint(v.size))
    return other, min(several, covering(other.size)), ENOUGH_PROGRAMS


def _of_rows_in_turn(kernel: Kernel, lane: Var) -> Tile:
    """A row at a time, or several where they are short."""
    (down,), block = kernel.down, covering(lane.size)
    elements = min(STEP_BYTES // widest(kernel), BYTES_IN_TURN // max(bytes_in_turn(kernel), 1))
    several = 1 << max(elements // block, 1).bit_length() - 1
    while hint(down.size) % several:
        several //= 2
    return Tile((Axis(down, several), Axis(lane, block))) if several > 1 else Tile((Axis(lane, block),))


def bytes_in_turn(kernel: Kernel) -> int:
    """Bytes that are read of each row for one of its points."""
    return sum(DTYPES[load.dtype].itemsize for load in kernel.read_in_turn)


def widest(kernel: Kernel) -> int:
    """Bytes of an element of what is read in turn, the most."""
    return max((DTYPES[load.dtype].itemsize for load in kernel.read_in_turn), default=4)


def _of_columns(kernel: Kernel, lane: Var) -> Tile:
    """Columns side by side, each added up by several threads."""
    columns = columns_of(kernel, lane)
    down = down_of(kernel)
    rows = min(_rows_of_columns(kernel, lane, columns), covering(down.size))
    return Tile((Axis(down, rows), Axis(lane, columns))) if rows > 1 else Tile((Axis(lane, columns),))


def _of_steps(kernel: Kernel, lane: Var) -> Tile:
    """Lines side by side, of several loops where the lanes' is short: each is gone through step by step."""
    block = min(covering(lane.size), STEP_LANES)
    other = _beside(kernel, (lane,), STEP_LANES // block)
    if other is None or block == STEP_LANES or isinstance(lane.size, Sym):
        return Tile((Axis(lane, block),))
    several = min(STEP_LANES // block, covering(other.size))
    return Tile((Axis(other, several), Axis(lane, block)), flat=True) if several > 1 else Tile((Axis(lane, block),))


def down_of(kernel: Kernel) -> Var:
    """The loop over the row of which a program takes several steps at once."""
    return max(reversed(kernel.row), key=lambda v: hint(v.size))


def columns_of(kernel: Kernel, lane: Var) -> int:
    """The columns that a program adds up: fewer where there would be too few programs."""
    covered = max(covering(lane.size), LEAST_BLOCK if isinstance(lane.size, Sym) else 1)
    columns, least = min(covered, MOST_COLUMNS), LEAST_COLUMNS // 2 if kernel.has_scans else LEAST_COLUMNS
    others = hint(numel(v.size for v in kernel.outer if v is not lane))
    while columns > least and others * -(-hint(lane.size) // columns) < ENOUGH_PROGRAMS:
        columns //= 2
    return columns


def _rows_of_columns(kernel: Kernel, lane: Var, columns: int) -> int:
    """The elements of each column that a program takes at once, if there are so many."""
    if not kernel.has_scans:
        return max(streamed(kernel) // columns, 1)
    programs = hint(numel(v.size for v in kernel.outer if v is not lane)) * -(-hint(lane.size) // columns)
    return (ROW_BLOCK if programs >= ENOUGH_PROGRAMS else min(LARGEST_BLOCK, most_scanned(kernel))) // columns


def _of_points(kernel: Kernel, lane: Var) -> Tile:
    """A part of a loop, or of up to three: of one that other accesses move along, of one whose elements lie between
    those of neighbouring lanes, or of another one where this one is short.
    """
    block = max(covering(lane.size), LEAST_BLOCK if isinstance(lane.size, Sym) else 1)
    across = _across(kernel, lane)
    if across is not None:
        return Tile((Axis(across[0], min(SIDE, covering(across[0].size))), Axis(lane, min(SIDE, block))))
    between = _between(kernel, lane)
    if between is not None:
        inner = covering(between.size)
        along = min(LANE_BLOCK // inner, covering(lane.size))
        several = LANE_BLOCK // (along * inner)
        other = _beside(kernel, (lane, between), several)
        lines = 1 if other is None else min(several, covering(other.size))
        axes = (Axis(lane, along), Axis(between, inner))
        return Tile(axes if other is None or lines == 1 else (Axis(other, lines), *axes), flat=True)
    block = min(block, LANE_BLOCK)
    other = _beside(kernel, (lane,), LANE_BLOCK // block)
    if other is not None and not isinstance(lane.size, Sym) and block <= LANE_BLOCK // 2:
        several = min(LANE_BLOCK // block, covering(other.size))
        if several > 1:
            return Tile((Axis(other, several), Axis(lane, block)), flat=True)
    return Tile((Axis(lane, block),))


def _beside(kernel: Kernel, taken: Collection[Var], several: int) -> Var | None:
    """The loop of which a program takes several lines: the nearest that has so many, else the longest.

    What windows of neighbouring lines share is in the cache then.
    """
    others = [v for v in kernel.outer if v not in taken]
    near = next((v for v in reversed(others) if hint(v.size) >= several), None)
    return near or max(others, key=lambda v: hint(v.size), default=None)


def _between(kernel: Kernel, lane: Var) -> Var | None:
    """A short loop whose elements fill in memory what lies between those of neighbouring lanes: halves of a pair.

    Without it in the tile each program would touch all lines of the cache for a part of what is in them.
    """
    if isinstance(lane.size, Sym):
        return None
    for ix, _ in memory_indices(kernel):
        step = index.coefficient(ix, lane)
        for var in kernel.outer:
            short = var.size == step and 1 < hint(var.size) < MOST_BETWEEN
            if short and index.coefficient(ix, var) == 1:
                return var
    return None


def _across(kernel: Kernel, lane: Var) -> tuple[Var, int] | None:
    """A loop along which accesses are contiguous that are scattered along the lanes; the fewest bytes of an element.

    What does not move along all loops of the row is in the cache when it is read again, and decides nothing.
    """
    row = {v for v in kernel.row if v.size != 1}
    found = [
        (ix, itemsize)
        for ix, itemsize in memory_indices(kernel)
        if index.coefficient(ix, lane) not in (0, 1) and row <= index.variables(ix)
    ]
    for first, _ in found:
        for var in kernel.outer:
            if var is not lane and hint(var.size) >= LEAST_ACROSS and index.coefficient(first, var) == 1:
                return var, min(itemsize for ix, itemsize in found if index.coefficient(ix, var) == 1)
    return None
