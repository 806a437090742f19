"""One kernel as the source of a Triton function: the same loops, a program for each outer point or lane block.

The text needs `tl` and the functions of `launch.cuda.triton_support` (as `fs`) in its globals. Sizes and numbers that
are known only at the call are parameters; a kernel of a short row that may become long has a second version for that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Number
from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.ir.symbolic.size import Size, Sym, Symbol, hint, numel, surely_at_least
from framesmith_backends.render.triton import tile_rules
from framesmith_backends.render.triton.row_passes import write_program
from framesmith_backends.render.triton.state import writing
from framesmith_backends.render.triton.tile import WARP, Axis, Config, Tile, has_strided_reads, holds_row, reaches
from framesmith_backends.render.triton.tile_rules import row_block, tile_of
from framesmith_backends.schedule.kernels.loops import lane_score, read_once

# A launch has no more programs than this.
MOST_PROGRAMS = (1 << 31) - 1
# Elements of a thread, those of strided reads, and bytes of those that it reads at once of a row that goes on, or is
# one of several that are taken in turn.
PER_THREAD, PER_THREAD_STRIDED, BYTES_PER_THREAD = 8, 2, 32
# So many warps take rows in turn, if they have enough to do, and more only where a thread would have more bytes of a
# row than the above.
WARPS_IN_TURN = 8
# Tensors that begin at multiples of so many bytes, and sizes divisible by so many elements, let whole vectors be read
# and written.
POINTER_ALIGNMENT = SIZE_DIVISOR = 16
# The number of the program that runs.
PROGRAM = "tl.program_id(0)"


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """The source of a function `name(p0, p1, ..., n0, n1, ..., first)`, its grid, and the types of its pointers.

    `numbers` are the parameters n0, n1, ...: integers of 64 bits and doubles; `aligned` says which of them are sizes
    along which memory is walked and that were divisible by `SIZE_DIVISOR` while tracing. The parameter `first`, the
    number of the first program, is there where a launch may not hold the whole grid. With `longer` this version is for
    rows of no more than `block` elements, `longer` for others.
    """

    name: str
    source: str
    grid: Size
    block: int
    warps: int
    pointers: tuple[str, ...]
    numbers: tuple[Symbol | Number, ...] = ()
    aligned: tuple[int, ...] = ()
    row: Size = 0
    longer: TritonKernel | None = None
    has_checks: bool = False
    stages: int = 0

    @property
    def options(self) -> dict[str, int | bool]:
        """Triton's options: each operation rounded, as eager's are, subnormal numbers of the device's library too.

        With checks, but without Triton's own asserts for overflows.
        """
        checked: dict[str, int | bool] = {"debug": True, "sanitize_overflow": False} if self.has_checks else {}
        staged = {"num_stages": self.stages} if self.stages else {}
        exact = {"enable_fp_fusion": False, "enable_reflect_ftz": False}
        return {"num_warps": self.warps} | exact | staged | checked

    @property
    def has_first(self) -> bool:
        return not surely_at_least(MOST_PROGRAMS, self.grid)

    @property
    def versions(self) -> tuple[TritonKernel, ...]:
        return (self,) if self.longer is None else (self, self.longer)

    @property
    def parameters(self) -> tuple[tuple[str, str], ...]:
        """Names and types of the parameters."""
        pointers = [(f"p{k}", kind) for k, kind in enumerate(self.pointers)]
        numbers = [(f"n{k}", "fp64" if isinstance(n, Number) else "i64") for k, n in enumerate(self.numbers)]
        return (*pointers, *numbers, *([("first", "i64")] if self.has_first else []))

    @property
    def head(self) -> str:
        """The source's first line."""
        types = {"i64": ": tl.int64", "fp64": ": tl.float64"}
        return f"def {self.name}({', '.join(name + types.get(kind, '') for name, kind in self.parameters)}):"

    @property
    def anonymous_source(self) -> str:
        """The source, whatever the function is called."""
        return self.source.replace(f"def {self.name}(", "def kernel(", 1)

    def body(self, pointers: Sequence[str], program: str) -> list[str]:
        """The lines behind the head, on other pointers, for the program of that name.

        Nothing else in a source is spelled as a pointer, p and digits, or as `PROGRAM`.
        """
        lines = self.source.replace(PROGRAM, program).splitlines()[1:]
        return [re.sub(r"\bp(\d+)\b", lambda found: pointers[int(found[1])], line) for line in lines]


def render_triton(kernel: Kernel, name: str, form: Config | None = None) -> TritonKernel:
    """The kernel as a Triton function, by rule or, if its sizes are fixed, in the given configuration.

    A ValueError for a kernel with rows in scratch memory, or one that goes down otherwise than by rows.
    """
    if kernel.scratch or (kernel.down and not kernel.takes_rows_in_turn):
        problem = "it keeps rows in scratch memory" if kernel.scratch else "it goes down, and not by rows"
        raise ValueError(f"kernel {kernel.name} has no Triton function: {problem}")
    kernel = in_no_order(kernel)
    if form is not None:
        return _render(kernel, name, form)
    rule, lane = config_by_rule(kernel), kernel.lane
    if lane is None or lane not in kernel.row or not _held_while_short(kernel, row_block(kernel, lane)):
        return _render(kernel, name, rule)
    blocks = Tile((Axis(lane, tile_rules.ROW_BLOCK),))
    longer = _render(kernel, f"{name}_longer", Config(blocks, warps_of(kernel, blocks)))
    return replace(_render(kernel, name, rule, True), row=lane.size, longer=longer)


def config_by_rule(kernel: Kernel) -> Config:
    """The configuration of a kernel whose points are in no order."""
    tile = tile_of(kernel)
    return Config(tile, warps_of(kernel, tile))


def in_no_order(kernel: Kernel) -> Kernel:
    """The kernel with threads for all points of what it adds up, where a kernel of the CPU takes them in turn."""
    if not kernel.updates:
        return kernel
    loops = (*kernel.outer, *kernel.row)
    lane = max(reversed(loops), key=lambda v: lane_score(kernel, v), default=None)
    return replace(kernel, outer=loops, row=(), lane=lane)


def _held_while_short(kernel: Kernel, block: int) -> bool:
    """Whether several passes are over a row that was short enough to be held, but need not stay so."""
    lane = kernel.lane
    if lane is None or not isinstance(lane.size, Sym) or surely_at_least(block, lane.size):
        return False
    return hint(lane.size) <= block and sum(one.has_loop for one in kernel.passes) > 1


def _render(kernel: Kernel, name: str, form: Config, whole: bool = False) -> TritonKernel:
    pointers, tile, warps = tuple(DTYPES[p.dtype].pointer for p in kernel.params), form.tile, form.warps
    w = writing(kernel, tile, kernel.params, reaches(kernel), whole)
    w.past_l1 = read_once(kernel) if form.past_l1 else frozenset()
    block = tile.axes[-1].block if tile.axes else 1
    checks = bool(kernel.checks)
    grid = numel(tile.count(var) for var in kernel.outer if var not in kernel.down)
    result = TritonKernel(name, "", grid, block, warps, pointers, kernel.numbers, has_checks=checks)
    for k, number in enumerate(kernel.numbers):
        w.numbers[number] = w.fresh(f"fs.{'double' if isinstance(number, Number) else 'integer'}(n{k})", w.here)
    w.line(f"pid = {PROGRAM}.to({w.integer}){' + fs.integer(first)' if result.has_first else ''}")
    write_program(w)
    aligned = tuple(
        k
        for k, n in enumerate(kernel.numbers)
        if isinstance(n, Symbol) and n in w.stepping and n.hint % SIZE_DIVISOR == 0
    )
    return replace(result, source=w.source(result.head), aligned=aligned)


def warps_of(kernel: Kernel, tile: Tile) -> int:
    """Eight elements to a thread; of the longest rows, which are held, up to 32.

    Two where lanes read every second element or fewer: a thread's elements are neighbours, so that what the threads of
    a warp read at once would be spread over as many lines of the cache as they have elements.
    """
    elements = tile.elements
    per_thread = PER_THREAD_STRIDED if has_strided_reads(kernel, tile) else PER_THREAD
    if kernel.down:
        most = BYTES_PER_THREAD // tile_rules.widest(kernel)
        per_thread = min(max(elements // (WARP * WARPS_IN_TURN), min(most, PER_THREAD)), most)
    elif per_thread == PER_THREAD and kernel.row and not holds_row(kernel, tile):
        per_thread = max(BYTES_PER_THREAD // max(tile_rules.bytes_of_point(kernel), 1), PER_THREAD)
    return min(max(elements // (WARP * per_thread), 1), 16 if elements <= 1 << 14 else 32)
