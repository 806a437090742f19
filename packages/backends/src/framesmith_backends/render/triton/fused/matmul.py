"""A matmul with its epilogue as a Triton function: a program for each tile of the result.

Programs are numbered so that neighbours read the same rows and columns, which are then in the cache. Sums are kept in
float32, in one order whatever runs when. What lies beyond the matrices is read as zeros and not stored. An operand that
is computed on the way in is 0 beyond the depth, whatever its expression comes to there; rows and columns beyond the
result are not stored, and reach no others.
"""

from __future__ import annotations

from dataclasses import replace

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Expr
from framesmith_backends.ir.fused.matmul import ACCUMULATOR, FusedMatmul, Rest
from framesmith_backends.ir.kernel import Kernel, RowPass, Store
from framesmith_backends.ir.program import BufferView
from framesmith_backends.ir.symbolic import index
from framesmith_backends.render.triton.emit import emit, position, stored
from framesmith_backends.render.triton.fused import operands
from framesmith_backends.render.triton.fused.operands import masked, steps_of
from framesmith_backends.render.triton.kernel import TritonKernel
from framesmith_backends.render.triton.state import Scope, Writing, writing
from framesmith_backends.render.triton.tile import Axis, Tile, fixed, reaches

#: So many tiles down the rows are computed before the next columns are read.
ROWS_TOGETHER = 8


def render_matmul(matmul: FusedMatmul, name: str) -> TritonKernel:
    """The Triton function of the matmul in its tile."""
    tile = matmul.tile
    axes = Tile((Axis(matmul.rows, tile.rows), Axis(matmul.columns, tile.columns)))
    w = writing(matmul.epilogue, axes, matmul.params, _reaches(matmul))
    lines = w.here.lines
    grid = _programs(w, matmul)
    _loops(w, matmul)
    _tile(w, matmul)
    _multiply(w, matmul)
    if matmul.rest is None or matmul.rest.known:
        for store in matmul.epilogue.passes[0].stores:
            _store(w, store)
    w.scopes[0].lines = lines  # `_open` has left those before its loop
    return operands.function_of(w, name, matmul.params, grid, tile)


def _reaches(matmul: FusedMatmul) -> bool:
    """Whether an index of an operand or of the epilogue may be beyond 32 bits, tails of tiles included."""
    tile, far = matmul.tile, reaches(matmul.epilogue)
    far = far or (matmul.left_over * matmul.steps + 1) * tile.evenly >= 1 << 31
    deep, loops = tile.depth * tile.splits * 2, (matmul.batch, matmul.rows, matmul.along)
    for (view, value), more in zip(matmul.operands, ((1, tile.rows, deep), (1, deep, tile.columns)), strict=True):
        if value is None:
            far = far or operands.last_index(view, more) >= 1 << 31
        else:
            passes = (RowPass((), (), (Store("operand", index.ZERO, value),)),)
            far = far or reaches(Kernel("operand", (), loops, (), None, passes))
    return far


def _lines(w: Writing, *lines: str) -> None:
    for line in lines:
        w.line(line)


def _programs(w: Writing, matmul: FusedMatmul) -> int:
    """The number of the tile, of all parts and matmuls, as `pid`; how many programs there are.

    Where programs go over several tiles, what each does with one is a scope of its own.
    """
    tile, count = matmul.tile, matmul.tiles * matmul.tile.splits
    if matmul.rest is not None and not matmul.rest.known:
        _open_share(w, matmul)
        return tile.evenly
    if not tile.programs:
        _lines(w, f"pid = tl.program_id(0).to({w.integer})")
        if matmul.rest is not None:
            _lines(w, "number = pid")
        return count
    # Flattened: loads of the next tile run ahead while the epilogue of this one is computed.
    _open(w, f"for turn in tl.range(fs.count(tl.program_id(0)), {count}, {tile.programs}, flatten=True):")
    _lines(w, f"pid = turn + tl.full([], 0, {w.integer})")
    return min(tile.programs, count)


def _open(w: Writing, head: str) -> None:
    """A loop over tiles: where values are known from here on, but for those that hold for all tiles.

    These are named before the loop, whenever they are met.
    """
    outer, inner = w.here, Scope([], w.here.indent + 1)
    before: list[object] = []
    outer.lines += [before, "    " * outer.indent + head, inner.lines]
    outer.lines = before
    w.scopes.append(inner)
    w.base = len(w.scopes) - 1


def _open_share(w: Writing, matmul: FusedMatmul) -> None:
    """The steps of a program among those of all tiles that are left over, tile by tile."""
    steps, programs = matmul.steps, matmul.tile.evenly
    total, whole = matmul.left_over * steps, matmul.tiles - matmul.left_over
    _lines(
        w,
        f"share = tl.program_id(0).to({w.integer})",
        f"start = share * {total} // {programs}",
        f"end = (share + 1) * {total} // {programs}",
    )
    _open(w, f"for turn in range(fs.count(start // {steps}), fs.count((end - 1) // {steps} + 1)):")
    _lines(
        w,
        f"pid = turn + tl.full([], {whole}, {w.integer})",
        f"low = tl.maximum(start - turn * {steps}, 0)",
        f"high = tl.minimum(end - turn * {steps}, {steps})",
    )


def _loops(w: Writing, matmul: FusedMatmul) -> None:
    """The numbers of the part of the depth and of the matmul; what is left in `pid` is that of the tile."""
    batch = fixed(matmul.batch.size)
    tiles = matmul.tiles // batch
    w.level_of[matmul.batch] = w.base
    w.variables[matmul.batch] = "batch"
    _lines(w, f"batch = pid // {tiles}", f"pid = pid % {tiles}")
    if matmul.part is not None:
        w.level_of[matmul.part] = w.base
        w.variables[matmul.part] = "part"
        _lines(w, f"part = batch // {batch}", f"batch = batch % {batch}")
    assert (matmul.part is not None) == (matmul.tile.splits > 1)


def _tile(w: Writing, matmul: FusedMatmul) -> None:
    """The rows and columns of the tile, and which of them there are."""
    tile = matmul.tile
    down, across = -(-fixed(matmul.rows.size) // tile.rows), -(-fixed(matmul.columns.size) // tile.columns)
    together = min(ROWS_TOGETHER, down)
    _lines(w, f"first = pid // {together * across} * {together}", f"within = pid % {together * across}")
    if down % together:
        _lines(w, f"height = tl.minimum({down} - first, {together})")
    height = "height" if down % together else str(together)
    _lines(
        w,
        f"rows = (first + within % {height}) * {tile.rows} + tl.arange(0, {tile.rows})",
        f"columns = within // {height} * {tile.columns} + tl.arange(0, {tile.columns})",
        f"depth = tl.arange(0, {tile.depth}).to({w.integer})",
    )
    operands.name_loop(w, matmul.rows, "rows[:, None]")
    operands.name_loop(w, matmul.columns, "columns[None, :]")


def _multiply(w: Writing, matmul: FusedMatmul) -> None:
    """The sums of the tile, along the depth."""
    tile, k, steps = matmul.tile, matmul.depth, matmul.steps
    first = f"part * {steps * tile.depth}" if matmul.part is not None else ""
    rest = matmul.rest
    first = f"low * {tile.depth}" if rest is not None and not rest.known else first
    _lines(w, f"along = depth{f' + {first}' if first else ''}")
    for which, (view, value) in zip("ab", matmul.operands, strict=True):
        if value is None:
            _addresses(w, matmul, which, view)
    _lines(w, f"sums = tl.zeros([{tile.rows}, {tile.columns}], tl.float32)")
    body = Scope([], w.here.indent + 1)
    # The number of the step counts from the first one of the part, and from the first of all in shares.
    start = first if matmul.part is not None else ""
    tail = k % (steps * tile.depth * tile.splits) != 0
    if tail:
        w.line(f"left = {k} - k * {tile.depth}{f' - {start}' if start else ''}", body)
    if any(tile.computed):
        w.line(f"here = depth + k * {tile.depth}{f' + {start}' if start else ''}", body)
    _step(w, matmul, {"a": "(depth[None, :] < left)", "b": "(depth[:, None] < left)"} if tail else {}, body)
    bounds = f"0, {steps}"
    if rest is not None:
        bounds = "fs.count(low), fs.count(high)"
    if rest is not None and rest.known:
        bounds = f"0, fs.count(tl.where(number < {matmul.tiles - matmul.left_over}, {steps}, 0))"
    _lines(w, f"for k in range({bounds}):")  # behind what the body has named before the loop
    w.here.lines.append(body.lines)
    if rest is not None:
        _add_up(w, matmul, rest)
    w.refs[ACCUMULATOR] = "sums"


def _step(w: Writing, matmul: FusedMatmul, inside: dict[str, str], body: Scope) -> None:
    """A tile of each operand, and what they multiply to; `inside` says which of their elements are within the depth."""
    tile = matmul.tile
    for which, (_, value) in zip("ab", matmul.operands, strict=True):
        if value is not None:
            _compute(w, matmul, which, value, inside.get(which), body)
            continue
        own = w.masks.get(matmul.rows if which == "a" else matmul.columns)
        w.line(f"{which} = tl.load({which}_addresses{masked(own, inside.get(which))})", body)
    w.line(f"sums = tl.dot(a, b, sums{operands.precision(matmul.dtype)})", body)
    for which, (view, value), axis in zip("ab", matmul.operands, (2, 1), strict=True):
        if value is None:
            w.line(f"{which}_addresses += {tile.depth * steps_of(view)[axis]}", body)


def _add_up(w: Writing, matmul: FusedMatmul, rest: Rest) -> None:
    """The sums of the tile in the buffer of the rest: those of a share stored, or of all shares added."""
    tile, steps, programs = matmul.tile, matmul.steps, matmul.tile.evenly
    total, size = matmul.left_over * steps, tile.rows * tile.columns
    down, across = f"tl.arange(0, {tile.rows})[:, None]", f"tl.arange(0, {tile.columns})[None, :]"
    _lines(w, f"cells = {w.pointers[rest.buffer]} + {down} * {tile.columns} + {across}")
    if not rest.known:
        _lines(w, f"tl.store(cells + (2 * share + turn - start // {steps}) * {size}, sums)")
        return
    _lines(
        w,
        f"turn = number - {matmul.tiles - matmul.left_over}",
        f"share = ((turn * {steps} + 1) * {programs} - 1) // {total}",
        f"shares = tl.where(turn >= 0, ((turn + 1) * {steps} * {programs} - 1) // {total} + 1, share)",
        "for one in range(fs.count(share), fs.count(shares)):",
        f"    sums += tl.load(cells + (2 * one + turn - one * {total} // {programs} // {steps}) * {size})",
    )


def _addresses(w: Writing, matmul: FusedMatmul, which: str, view: BufferView) -> None:
    """The addresses of the first tile of an operand that is read as it lies."""
    batch, *steps = steps_of(view)
    parts = ("rows[:, None]", "along[None, :]") if which == "a" else ("along[:, None]", "columns[None, :]")
    where = [str(view.offset)] if view.offset != 0 else []
    where += [_times("batch", batch)] if batch != 0 else []
    where += map(_times, parts, steps)
    tile = matmul.tile
    shape = [tile.rows, tile.depth] if which == "a" else [tile.depth, tile.columns]
    w.line(f"{which}_addresses = {w.pointers[view.source]} + tl.broadcast_to({' + '.join(where)}, {shape})")


def _times(text: str, step: int) -> str:
    return text if step == 1 else f"{text} * {step}"


def _compute(w: Writing, matmul: FusedMatmul, which: str, value: Expr, inside: str | None, body: Scope) -> None:
    """A tile of an operand that is computed; what of it is the same at every depth is computed before the loop."""
    tile, along = matmul.tile, matmul.along
    deep = Axis(along, tile.depth)
    axes = (Axis(matmul.rows, tile.rows), deep) if which == "a" else (deep, Axis(matmul.columns, tile.columns))
    spread = "[None, :]" if which == "a" else "[:, None]"
    masks = {axis.var: w.masks[axis.var] for axis in axes if axis.var in w.masks}
    if inside is not None:
        masks[along] = inside
    own = replace(
        w,
        tile=Tile(axes),
        scopes=[*w.scopes, Scope(body.lines, body.indent)],
        level_of={**w.level_of, along: w.base + 1},
        variables={**w.variables, along: f"here{spread}"},
        masks=masks,
    )
    text = emit(own, value)
    if DTYPES[matmul.dtype].compute != matmul.dtype:
        text = f"{text}.to({DTYPES[matmul.dtype].triton})"
    text = f"tl.broadcast_to({text}, [{axes[0].block}, {axes[1].block}])"
    own.line(f"{which} = {text if inside is None else f'tl.where({inside}, {text}, 0.0)'}")
    w.count = own.count


def _store(w: Writing, store: Store) -> None:
    """An element for each point of the tile, also where the index or the value is the same for several."""
    value = stored(w, store.value)
    shape = w.tile.shape(w.tile.variables)
    place = f"{w.pointers[store.buffer]} + tl.broadcast_to({position(w, store.index)}, {shape})"
    mask = w.mask(w.tile.variables)
    suffix = f", mask=tl.broadcast_to({mask}, {shape})" if mask is not None else ""
    assert index.indirect_atoms(store.index) == ()
    w.line(f"tl.store({place}, tl.broadcast_to({value}, {shape}){suffix})")
