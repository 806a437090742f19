"""One kernel as the source of a Triton function: the same loops, a program for each outer point or lane block.

The text needs `tl` and the functions of `launch.triton_support` (as `fs`) in its globals. Sizes and numbers that are
known only at the call are parameters; a kernel of a short row that may become long has a second form for that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from framesmith_backends.ir.expr import Number, loads
from framesmith_backends.ir.index import Var
from framesmith_backends.ir.kernel import Accumulate, Kernel, Pass
from framesmith_backends.ir.ops import REDUCTIONS
from framesmith_backends.ir.size import Size, Sym, Symbol, hint, product, surely_at_least
from framesmith_backends.render.nested_lines import flat
from framesmith_backends.render.triton.emit import emit, emit_check, emit_store, number_text, operation
from framesmith_backends.render.triton.sizes import size_of, step_of
from framesmith_backends.render.triton.state import TYPES, Scope, Writing
from framesmith_backends.schedule.loops import lane_score

# Pointer types of a compiled signature. Bools are stored as bytes.
POINTERS = {
    "b1": "*i8", "u8": "*u8", "i8": "*i8", "i16": "*i16", "i32": "*i32", "i64": "*i64",
    "f16": "*fp16", "bf16": "*bf16", "f32": "*fp32", "f64": "*fp64",
}  # fmt: skip
# Rows up to this long are held in registers at once; longer ones, and outer lanes, go in blocks.
WHOLE_ROW, ROW_BLOCK, LANE_BLOCK = 4096, 2048, 1024
# Where the number of lanes changes between calls, blocks are no smaller than this, whatever it was at first.
LEAST_BLOCK = 256
# A launch has no more programs than this.
MOST_PROGRAMS = (1 << 31) - 1
# Sizes divisible by this let whole vectors be read and written.
ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """The source of a function `name(p0, p1, ..., n0, n1, ..., first, BLOCK)`, its grid, and the types of its pointers.

    `numbers` are the parameters n0, n1, ...: integers of 64 bits and doubles; `aligned` says which of them are sizes
    along which memory is walked and that were divisible by `ALIGNMENT` while tracing. The parameter `first`, the number
    of the first program, is there where a launch may not hold the whole grid. With `longer` this form is for rows of no
    more than `block` elements, `longer` for others.
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

    @property
    def options(self) -> dict[str, int | bool]:
        """How it is compiled: each operation rounded, as eager's are, and with its checks.

        (Triton's asserts for overflows of its own would come with these.)
        """
        checked: dict[str, int | bool] = {"debug": True, "sanitize_overflow": False} if self.has_checks else {}
        return {"num_warps": self.warps, "enable_fp_fusion": False} | checked

    @property
    def has_first(self) -> bool:
        return may_need_launches(self.grid)

    @property
    def forms(self) -> tuple[TritonKernel, ...]:
        return (self,) if self.longer is None else (self, self.longer)

    @property
    def parameters(self) -> tuple[tuple[str, str], ...]:
        """Names and types of the parameters, without BLOCK."""
        pointers = [(f"p{k}", kind) for k, kind in enumerate(self.pointers)]
        numbers = [(f"n{k}", "fp64" if isinstance(n, Number) else "i64") for k, n in enumerate(self.numbers)]
        return (*pointers, *numbers, *([("first", "i64")] if self.has_first else []))


def may_need_launches(grid: Size) -> bool:
    """Whether the grid may hold more programs than a launch."""
    return not surely_at_least(MOST_PROGRAMS, grid)


def why_not_triton(kernel: Kernel) -> str | None:
    """Why the kernel cannot be rendered, or None."""
    return "it keeps rows in scratch memory" if kernel.scratch else None


def render_triton(kernel: Kernel, name: str) -> TritonKernel:
    """The Triton form of the kernel; a ValueError where `why_not_triton` has a reason."""
    problem = why_not_triton(kernel)
    if problem is not None:
        raise ValueError(f"kernel {kernel.name} has no Triton form: {problem}")
    kernel = _in_no_order(kernel) if kernel.updates else kernel
    block, lane = block_of(kernel), kernel.lane
    if lane is None or not _held_while_short(kernel, block):
        return _render(kernel, name, block)
    longer = _render(kernel, f"{name}_longer", ROW_BLOCK)
    return replace(_render(kernel, name, block, True), row=lane.size, longer=longer)


def _in_no_order(kernel: Kernel) -> Kernel:
    """The kernel with threads for all points of what it adds up, where a kernel of the CPU takes them in turn."""
    loops = (*kernel.outer, *kernel.row)
    lane = max(reversed(loops), key=lambda v: lane_score(kernel, v), default=None)
    return replace(kernel, outer=loops, row=(), lane=lane)


def _held_while_short(kernel: Kernel, block: int) -> bool:
    """Whether several passes are over a row that was short enough to be held, but need not stay so."""
    lane = kernel.lane
    if lane not in kernel.row or not isinstance(lane.size, Sym) or surely_at_least(block, lane.size):
        return False
    return hint(lane.size) <= block and sum(one.has_loop for one in kernel.passes) > 1


def _render(kernel: Kernel, name: str, block: int, whole: bool = False) -> TritonKernel:
    pointers = tuple(POINTERS[p.dtype] for p in kernel.params)
    w = Writing(kernel, block, [Scope([], 1)], whole)
    for k, param in enumerate(kernel.params):
        w.pointers[param.name] = f"p{k}"
    grid = grid_of(kernel, block)
    warps, checks = min(max(block // 256, 1), 16), bool(kernel.checks)
    result = TritonKernel(name, "", grid, block, warps, pointers, kernel.numbers, has_checks=checks)
    types = {"i64": ": tl.int64", "fp64": ": tl.float64"}
    arguments = [f"{parameter}{types.get(kind, '')}" for parameter, kind in result.parameters]
    for k, number in enumerate(kernel.numbers):
        w.numbers[number] = w.fresh(f"fs.{'double' if isinstance(number, Number) else 'integer'}(n{k})", w.here)
    w.line(f"pid = tl.program_id(0).to(tl.int64){' + fs.integer(first)' if result.has_first else ''}")
    _program(w)
    head = f"def {name}({', '.join([*arguments, 'BLOCK: tl.constexpr'])}):"
    source = "\n".join([head, *flat(w.scopes[0].lines)]) + "\n"
    aligned = tuple(
        k for k, n in enumerate(kernel.numbers) if isinstance(n, Symbol) and n in w.stepping and n.hint % ALIGNMENT == 0
    )
    return replace(result, source=source, aligned=aligned)


def block_of(kernel: Kernel) -> int:
    """The number of lanes: a power of two covering the row if it is short, else a block of it."""
    if kernel.lane is None:
        return 1
    covering = 1 << (hint(kernel.lane.size) - 1).bit_length()
    if isinstance(kernel.lane.size, Sym):
        covering = max(covering, LEAST_BLOCK)
    if kernel.lane in kernel.row:
        return covering if covering <= WHOLE_ROW else ROW_BLOCK
    return min(covering, LANE_BLOCK)


def grid_of(kernel: Kernel, block: int) -> Size:
    """The number of programs."""
    others = product(v.size for v in kernel.outer if v is not kernel.lane)
    return others * _lane_blocks(kernel, block)


def _lane_blocks(kernel: Kernel, block: int) -> Size:
    return (kernel.lane.size + (block - 1)) // block if kernel.lane in kernel.outer else 1


def _program(w: Writing) -> None:
    """Name the outer variables from the program's number, write the passes."""
    k, lane = w.kernel, w.kernel.lane
    others = [v for v in k.outer if v is not lane]
    point = "pid"
    if lane is not None and lane in k.outer:
        blocks = size_of(w, _lane_blocks(k, w.block))
        w.line(f"lane = pid % {blocks} * BLOCK + tl.arange(0, BLOCK).to(tl.int64)")
        w.line(f"point = pid // {blocks}")
        _open_lane(w, lane, "lane", lane.size % w.block != 0)
        point = "point"
    for position, var in enumerate(reversed(others)):
        w.level_of[var] = 0
        last = position == len(others) - 1
        w.variables[var] = w.fresh(point if last else f"{point} % {size_of(w, var.size)}", w.here)
        if not last:
            point = w.fresh(f"{point} // {size_of(w, var.size)}", w.here)
    stored: set[str] = set()
    for one in k.passes:
        if stored & _read(one):
            # What other threads of the program have written is seen after this.
            w.line("tl.debug_barrier()")
            stored.clear()
        for store in one.before:
            emit_store(w, store)
        if one.has_loop:
            _pass(w, one)
        stored |= {store.buffer for store in (*one.before, *one.stores)}


def _read(one: Pass) -> set[str]:
    return {load.source for load in loads(*one.values)}


def _open_lane(w: Writing, lane: Var, name: str, masked: bool) -> None:
    w.level_of[lane] = len(w.scopes) - 1
    w.variables[lane] = name
    if masked:
        known = w.here.names.get(("mask", name))
        if known is None:
            known = w.here.names["mask", name] = w.fresh(f"{name} < {step_of(w, lane.size)}", w.here)
        w.mask = known


def _pass(w: Writing, one: Pass) -> None:
    k, lane = w.kernel, w.kernel.lane
    inner = lane if lane in k.row else None
    cells = [_start(w, a) for a in one.reductions]
    depth = len(w.scopes)
    for var in (v for v in k.row if v is not inner):
        _open_loop(w, f"range({size_of(w, var.size)})", f"r_{var.name}")
        w.level_of[var] = len(w.scopes) - 1
        # A loop's number has 32 bits where its end has.
        w.variables[var] = w.fresh(f"tl.full([], r_{var.name}, tl.int64)", w.here)
    if inner is not None:
        _row_lanes(w, inner)
    for cell, a in zip(cells, one.reductions, strict=True):
        _accumulate(w, cell, a, inner is not None)
    for check in one.checks:
        emit_check(w, check)
    if k.writes_what_it_reads and not k.updates:
        for store in one.stores:
            emit(w, store.value)
    for store in one.stores:
        emit_store(w, store)
    _close(w, depth)
    if inner is not None:
        w.mask = None
    for cell, a in zip(cells, one.reductions, strict=True):
        w.refs[a.name] = f"fs.reduce_{a.kind}({cell})" if inner is not None else cell
        w.refs[a.name] = w.fresh(w.refs[a.name], w.here)


def _row_lanes(w: Writing, lane: Var) -> None:
    """The lanes along the row: all at once if the block covers the row, else in a loop."""
    if w.whole or surely_at_least(w.block, lane.size):
        known = w.here.names.get(("lane", lane))
        if known is None:
            known = w.here.names["lane", lane] = w.fresh("tl.arange(0, BLOCK).to(tl.int64)", w.here)
        _open_lane(w, lane, known, w.block != lane.size)
        return
    start = f"start{w.count}"
    _open_loop(w, f"range(0, {size_of(w, lane.size)}, BLOCK)", start)
    name = w.fresh(f"{start} + tl.arange(0, BLOCK).to(tl.int64)", w.here)
    _open_lane(w, lane, name, lane.size % w.block != 0)


def _open_loop(w: Writing, over: str, name: str) -> None:
    indent = w.here.indent
    w.scopes.append(Scope([], indent + 1))
    # The loop's head is written when it is closed, after what its body needs from outside.
    w.here.names["head"] = "    " * indent + f"for {name} in {over}:"


def _close(w: Writing, depth: int) -> None:
    while len(w.scopes) > depth:
        inner = w.scopes.pop()
        w.here.lines += [inner.names["head"], inner.lines]


def _start(w: Writing, a: Accumulate) -> str:
    dtype = a.value.dtype
    value = number_text(REDUCTIONS[a.kind].start(dtype), dtype)
    shape = "[BLOCK]" if w.kernel.lane is not None else "[]"
    return w.fresh(f"tl.full({shape}, {value}, {TYPES[dtype]})", w.here)


def _accumulate(w: Writing, cell: str, a: Accumulate, lanes_reduced: bool) -> None:
    value = emit(w, a.value)
    dtype = a.value.dtype
    if lanes_reduced and w.mask is not None:
        value = f"tl.where({w.mask}, {value}, {number_text(REDUCTIONS[a.kind].start(dtype), dtype)})"
    w.line(f"{cell} = {operation(REDUCTIONS[a.kind].combine, (value, cell), dtype)}")
