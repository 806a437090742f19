"""The verifier: the invariants of programs and kernels."""

from __future__ import annotations

from collections.abc import Iterable

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import (
    Carried,
    Expr,
    Index,
    Load,
    Op,
    Recurrence,
    Ref,
    children,
    loads,
    variables,
    walk,
    why_not_op,
)
from framesmith_backends.ir.fused.attention import (
    FINITE_TOTAL,
    FULLY_MASKED,
    LARGEST,
    TOTAL,
    AttentionTile,
    FusedAttention,
)
from framesmith_backends.ir.fused.attention_gradient import FusedAttentionGradient
from framesmith_backends.ir.fused.matmul import ACCUMULATOR, FusedMatmul, TileShape
from framesmith_backends.ir.kernel import Kernel, RowPass
from framesmith_backends.ir.ops import REDUCTIONS, SCANS, STEPS
from framesmith_backends.ir.program import BufferView, Def, Program
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.ir.symbolic.size import Size, surely_at_least


class Malformed(Exception):
    """A broken rule of the IR: a bug in the pass before. The message names the node and the rule."""


def verify_program(program: Program) -> None:
    """Definitions come before their uses, read inside their sources' shapes, and have the declared types."""
    known = {name for name in program.layouts if name not in program.defs}
    for d in program.defs.values():
        _refuse(f"definition {d.name}", _def_problems(d, program, known))
        known.add(d.name)


def _refuse(where: str, problems: Iterable[str]) -> None:
    """Raise the first problem, if any."""
    for problem in problems:
        raise Malformed(f"{where}: {problem}")


def _def_problems(d: Def, program: Program, known: set[str]) -> Iterable[str]:
    if d.body.dtype != d.dtype:
        yield f"its body is {d.body.dtype}, its layout {d.dtype}"
    if d.updates is not None:
        yield from _update_problems(d, program)
    elif len(d.axes) != len(d.layout.shape):
        yield f"{len(d.axes)} axes for shape {d.layout.shape}"
    for axis, size in zip(d.axes, d.layout.shape, strict=False):
        if (1 if axis is None else axis.size) != size:
            yield f"axis {axis} for a dimension of {size}"
    stray = variables(d.body) - set(d.domain)
    if stray:
        yield f"variables {sorted(v.name for v in stray)} are not in its domain"
    if d.updates is None and (d.reduction is None) != (not d.reduced):
        yield "a reduction over nothing, or reduced variables without a reduction"
    if d.failure is not None and (d.dtype != "b1" or d.reduction is not None or d.name in program.kept):
        yield "a check that is no plain bool, or that is to be kept"
    if d.reduction is not None and d.reduction not in REDUCTIONS:
        yield f"unknown reduction {d.reduction}"
    if (d.scan is None) != (d.scanned is None) or (d.scan is not None and d.scan not in (*SCANS, STEPS)):
        yield f"a scan {d.scan} along {d.scanned}"
    if d.scanned is not None and (d.scanned not in d.axes or d.reduced or d.updates is not None):
        yield f"a scan along {d.scanned}, which is no axis of it, or that is something else besides"
    yield from _recurrence_problems(d)
    for load in loads(d.body):
        if load.source not in known:
            yield f"{load.source} is read before it is defined"
            return
        yield from _load_problems(load, program)
    yield from _op_problems(d.body)


def _recurrence_problems(d: Def) -> Iterable[str]:
    """A recurrence is the whole body of a scan by steps, begins outside of it, and steps in the types it carries."""
    if isinstance(d.body, Recurrence) != (d.scan == STEPS):
        yield f"a recurrence as a scan of kind {d.scan}"
    if not isinstance(d.body, Recurrence):
        carried = [node for node in walk(d.body) if isinstance(node, (Carried, Recurrence))]
        if carried:
            yield f"{carried[0]!r} is not within a recurrence"
        return
    starts, steps = d.body.starts, d.body.steps
    if d.scanned in frozenset[Var]().union(*map(variables, starts)):
        yield f"it begins with what changes along {d.scanned}"
    if len(starts) != len(steps) or any(a.dtype != b.dtype for a, b in zip(starts, steps, strict=False)):
        yield f"carries {[a.dtype for a in starts]}, and steps to {[b.dtype for b in steps]}"
    for node in walk(*children(d.body)):
        if isinstance(node, Recurrence) or (
            isinstance(node, Carried) and [a.dtype for a in starts][node.number : node.number + 1] != [node.dtype]
        ):
            yield f"{node!r} is carried by no step"


def _update_problems(d: Def, program: Program) -> Iterable[str]:
    """Each point updates its own element, but for variables along which points run in order."""
    other = program.defs.get(str(d.updates))
    if other is None or other.buffer != d.name or other.layout != d.layout or d.reduction is not None or d.axes:
        yield f"it does not take over {d.updates}"
    readers = [one.name for one in program.defs.values() if any(load.source == d.updates for load in loads(one.body))]
    if readers != [d.name]:
        yield f"{d.updates} is read by {readers}"
    written = {load.index for load in loads(d.body) if load.source == d.updates and load.guard is None}
    if len(written) != 1:
        yield f"it writes to {len(written)} elements at a point"
    for where in written:
        own = {v for v in d.domain if index.of(v) in where}
        missing = set(d.domain) - {v for ix in where for v in index.variables(ix)}
        is_indirect = any(map(index.indirect_atoms, where))  # maybe the same element at all points
        if set(d.domain) - own - d.reduced or (missing and not is_indirect):
            yield f"points share the element {where}"


def _load_problems(load: Load, program: Program) -> Iterable[str]:
    layout = program.layouts[load.source]
    if len(load.index) != len(layout.shape):
        yield f"{load!r} has {len(load.index)} indices for shape {layout.shape}"
    if load.dtype != layout.dtype:
        yield f"{load!r} is {load.dtype}, its buffer {layout.dtype}"
    for ix, size in zip(load.index, layout.shape, strict=False):
        low, high = index.bounds(ix)  # what depends on symbolic sizes is guarded, or checked when the graph runs
        if load.guard is None and (surely_at_least(-1, low) or surely_at_least(high, size)):
            yield f"{load!r} may read {low}..{high} of {size}"


def _op_problems(*roots: Expr) -> Iterable[str]:
    for node in walk(*roots):
        if isinstance(node, Op):
            problem = why_not_op(node.name, node.args)
            if problem is not None:
                yield problem
        if node.dtype not in DTYPES:
            yield f"unknown type {node.dtype}"


def verify_kernel(kernel: Kernel) -> None:
    """Loops cover all variables, buffers are parameters, references are to earlier reductions and scans."""
    written = {p.name for p in kernel.params if p.written} | {s.name for s in kernel.scratch}
    readable = {p.name for p in kernel.params} | {s.name for s in kernel.scratch}
    done: set[str] = set()
    for number, one in enumerate(kernel.passes):
        _refuse(f"kernel {kernel.name}, pass {number}", _pass_problems(kernel, one, written, readable, done))
        done |= {a.name for a in one.reductions}
    _refuse(f"kernel {kernel.name}", _loop_problems(kernel, written))


def _loop_problems(kernel: Kernel, written: set[str]) -> Iterable[str]:
    """Column reductions are stored once for each column; lanes are along a loop."""
    if kernel.lane is not None and kernel.lane not in (*kernel.outer, *kernel.row):
        yield f"lanes along {kernel.lane}, which is no loop"
    made = [a.name for one in kernel.passes for a in one.columns]
    if kernel.outer[len(kernel.outer) - len(kernel.down) :] != kernel.down:
        yield "loops that go down are the last of the outer ones"
    if bool(kernel.down) != bool(made) or sorted(made) != sorted(getattr(s.value, "name", "") for s in kernel.after):
        yield f"{len(kernel.down)} loops go down, of {made} are stored {[s.buffer for s in kernel.after]}"
    for store in kernel.after:
        if store.buffer not in written or not isinstance(store.value, Ref):
            yield f"{store.buffer} behind the loops that go down"
        if not index.variables(store.index) <= {*kernel.outer, *kernel.row} - {*kernel.down}:
            yield f"the place {store.index} behind the loops that go down"


def _pass_problems(
    kernel: Kernel, one: RowPass, written: set[str], readable: set[str], done: set[str]
) -> Iterable[str]:
    outer, everywhere = set(kernel.outer), {*kernel.outer, *kernel.row}
    if one.scans and len(kernel.row) != 1:
        yield f"a scan along {len(kernel.row)} loops"
    for store in (*one.before, *one.stores):
        if store.buffer not in written:
            yield f"a store to {store.buffer}, which is not an output"
    for check in one.checks:
        if check.holds.dtype != "b1":
            yield f"a check of {check.holds.dtype}"
    scanned = [s.name for s in one.scans]
    stepped = {s.name for s in one.scans if s.start is not None}
    if any((s.kind == STEPS) != (s.start is not None) for s in one.scans):
        yield "a scan that steps from nothing"
    combined = (*one.reductions, *one.columns)
    for roots, allowed, known in (
        ([s.value for s in one.before] + [Index(s.index) for s in one.before], outer, done),
        *(([s.value], everywhere, done.union(stepped, scanned[:k])) for k, s in enumerate(one.scans)),
        ([s.start for s in one.scans if s.start is not None], outer, done),
        ([s.value for s in one.stores] + [Index(s.index) for s in one.stores], everywhere, done.union(scanned)),
        ([a.value for a in combined] + [c.holds for c in one.checks], everywhere, done.union(scanned)),
    ):
        for node in walk(*roots):
            if isinstance(node, Load) and node.source not in readable:
                yield f"{node!r} reads what is not a parameter"
            if isinstance(node, Load) and len(node.index) != 1:
                yield f"{node!r} is not flat"
            if isinstance(node, Ref) and node.name not in known:
                yield f"{node!r} refers to no earlier reduction or scan"
        yield from _stray_variables(roots, allowed)


def _stray_variables(roots: Iterable[Expr], allowed: Iterable[Var]) -> Iterable[str]:
    stray = frozenset[Var]().union(*map(variables, roots)) - {*allowed}
    if stray:
        yield f"variables {sorted(v.name for v in stray)} where only {sorted(v.name for v in allowed)} are known"


def verify_item(item: object) -> None:
    """Check an item of a run by its type; a matmul of BLAS has no rules."""
    if isinstance(item, Kernel):
        verify_kernel(item)
    elif isinstance(item, FusedMatmul):
        _refuse(f"matmul {item.name}", _matmul_problems(item))
        kernel = item.epilogue
        written, readable = {p.name for p in kernel.params if p.written}, {p.name for p in kernel.params}
        problems = _pass_problems(kernel, kernel.passes[0], written, readable, {ACCUMULATOR})
        _refuse(f"matmul {item.name}, epilogue", problems)
        _refuse(f"matmul {item.name}, prologue", _prologue_problems(item, written))
    elif isinstance(item, FusedAttention):
        _refuse(f"attention {item.name}", _attention_problems(item))
    elif isinstance(item, FusedAttentionGradient):
        _refuse(f"attention gradient {item.name}", _gradient_problems(item))


def _view_problems(wanted: Iterable[tuple[BufferView, tuple[Size, ...]]]) -> Iterable[str]:
    for place, shape in wanted:
        if place.shape != shape or len(place.strides) != len(shape):
            yield f"{place.source} is {list(place.shape)} by {list(place.strides)} instead of {list(shape)}"


def _tile_problems(tile: TileShape | AttentionTile, *lengths: int) -> Iterable[str]:
    if any(length < 1 or length & (length - 1) for length in lengths):
        yield f"a tile of {tile.text()}"


def _score_problems(what: str, value: Expr, known: set[str], loops: Iterable[Var]) -> Iterable[str]:
    """Pointwise work on results of matmuls is float32, of these results, and over these loops."""
    if value.dtype != "f32":
        yield f"{what} of {value.dtype}"
    stray = {node.name for node in walk(value) if isinstance(node, Ref)} - known
    if stray:
        yield f"{what} of {sorted(stray)}"
    yield from _stray_variables((value,), loops)


def _prologue_problems(matmul: FusedMatmul, written: set[str]) -> Iterable[str]:
    """A prologue has the matmul's type and the operand's loops, and reads nothing that is written."""
    batch, rows, along, columns = matmul.batch, matmul.rows, matmul.along, matmul.columns
    if tuple(value is not None for value in matmul.prologues) != matmul.tile.computed:
        yield f"{sum(value is not None for value in matmul.prologues)} of them for {matmul.tile.text()}"
    for value, loops in zip(matmul.prologues, ((batch, rows, along), (batch, along, columns)), strict=True):
        if value is None:
            continue
        if value.dtype != matmul.dtype:
            yield f"it is {value.dtype}, the matmul {matmul.dtype}"
        for node in walk(value):
            if isinstance(node, Load) and (node.source in written or len(node.index) != 1):
                yield f"{node!r} is written to, or not flat"
            if isinstance(node, Ref):
                yield f"{node!r} refers to nothing"
        yield from _stray_variables((value,), loops)


def _matmul_problems(matmul: FusedMatmul) -> Iterable[str]:
    """Operands agree in their sizes, tiles are powers of two, and the epilogue stores each point of the result once."""
    tile, kernel = matmul.tile, matmul.epilogue
    loops = (matmul.batch, matmul.rows, matmul.columns)
    wanted = (loops[0].size, loops[1].size, matmul.depth), (loops[0].size, matmul.depth, loops[2].size)
    yield from _view_problems(zip((matmul.a, matmul.b), wanted, strict=True))
    yield from _tile_problems(tile, tile.rows, tile.columns, tile.depth, tile.warps, tile.splits)
    if (matmul.part is not None) != (tile.splits > 1):
        yield f"{tile.splits} parts of the depth along {matmul.part}"
    if (matmul.rest is not None) != (tile.evenly > 0) or (tile.evenly > 0 and (tile.splits > 1 or tile.programs > 0)):
        yield f"the rest of {tile.text()} in {matmul.rest}"
    if tile.evenly and not tile.evenly <= matmul.left_over * matmul.steps:
        yield f"{matmul.left_over} tiles in {matmul.steps} steps for {tile.text()}"
    if kernel.outer != (*([matmul.part] if matmul.part is not None else []), *loops):
        yield f"the loops of its epilogue are {[v.name for v in kernel.outer]}"
    passes = kernel.passes
    if len(passes) != 1 or kernel.row or kernel.down or kernel.after or kernel.scratch:
        yield "its epilogue is not one pass over its points"
    if any(one.before or one.reductions or one.columns or one.scans or one.checks for one in passes):
        yield "its epilogue does more than store"
    stored = [store.buffer for one in passes for store in one.stores]
    if not stored or len({*stored}) != len(stored):
        yield f"its epilogue stores to {stored}"
    if {place.source for place, value in matmul.operands if value is None} & {*stored}:
        yield "an operand is written to"


def _attention_problems(attention: FusedAttention) -> Iterable[str]:
    """Operands agree in their sizes, tiles are powers of two, and scores are float32, of the matmul and its indices."""
    tile, loops = attention.tile, (attention.batch, attention.rows, attention.columns)
    batch, rows, columns = (loop.size for loop in loops)
    depth, length = attention.queries.shape[-1], attention.values.shape[-1]
    operands = attention.queries, attention.keys, attention.values
    wanted = (batch, rows, depth), (batch, depth, columns), (batch, columns, length)
    yield from _view_problems(zip(operands, wanted, strict=True))
    yield from _tile_problems(tile, tile.rows, tile.columns, tile.warps)
    yield from _score_problems("scores", attention.scores, {ACCUMULATOR}, loops)
    written = {attention.result, *(one.buffer for one in attention.kept)}
    if any(param.name in written for param in attention.params if not param.written):
        yield "an operand is written to"
    for one in attention.kept:
        known = {LARGEST, TOTAL, FINITE_TOTAL, FULLY_MASKED}
        if {node.name for node in walk(one.value) if isinstance(node, Ref)} - known or one.value.dtype != "f32":
            yield f"{one.buffer} of what is not known of a row"
        if loops[2] in variables(one.value) or loops[2] in index.variables(one.index):
            yield f"{one.buffer} for each column"


def _gradient_problems(gradient: FusedAttentionGradient) -> Iterable[str]:
    """Operands agree in their sizes, tiles are powers of two, and values are float32, of matmuls and their indices."""
    tile, loops = gradient.tile, (gradient.batch, gradient.own, gradient.other)
    batch, own, other = (loop.size for loop in loops)
    known = {one.name for one in gradient.matmuls}
    wanted = [(one.own, (batch, own, one.own.shape[-1])) for one in gradient.matmuls]
    wanted += [(one.other, (batch, one.own.shape[-1], other)) for one in gradient.matmuls]
    wanted += [(one.factor, (batch, other, one.factor.shape[-1])) for one in gradient.sums]
    wanted += [(one.result, (batch, own, one.factor.shape[-1])) for one in gradient.sums]
    yield from _view_problems(wanted)
    yield from _tile_problems(tile, tile.rows, tile.columns, tile.warps)
    for one in gradient.sums:
        yield from _score_problems("values", one.value, known, loops)
    if not gradient.sums:
        yield "nothing is summed up"
    written = [one.result.source for one in gradient.sums]
    if len({*written}) != len(written) or any(p.name in written for p in gradient.params if not p.written):
        yield "an operand is written to"
