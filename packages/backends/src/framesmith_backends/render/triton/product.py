"""A product with its epilogue as the source of a Triton function: a program for each tile of the result.

Programs are numbered so that neighbours read the same rows and columns, which are then in the cache. Sums are kept in
float32, in one order whatever runs when. What lies beyond the matrices is read as zeros and not stored. An operand that
is computed on the way in is 0 beyond the depth, whatever its expression comes to there; rows and columns beyond the
result are not stored, and reach no others.
"""

from __future__ import annotations

from dataclasses import replace

from framesmith_backends.ir import index
from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Expr
from framesmith_backends.ir.fused_product import ACCUMULATOR, FusedProduct
from framesmith_backends.ir.kernel import Kernel, Pass, Store
from framesmith_backends.ir.program import Place
from framesmith_backends.render.nested_lines import flat
from framesmith_backends.render.triton.emit import emit, position_text
from framesmith_backends.render.triton.kernel import POINTERS, TritonKernel
from framesmith_backends.render.triton.state import TYPES, Scope, Writing
from framesmith_backends.render.triton.tile import Axis, Tile, reaches

#: So many tiles down the rows are computed before the next columns are read.
ROWS_TOGETHER = 8


def render_product(product: FusedProduct, name: str) -> TritonKernel:
    """The Triton form of the product in its tile."""
    tile = product.tile
    down, across = _count(product.rows.size, tile.rows), _count(product.columns.size, tile.columns)
    batch = product.batch.size
    assert isinstance(batch, int)
    integer = "tl.int64" if _reaches(product) else "tl.int32"
    axes = Tile((Axis(product.rows, tile.rows), Axis(product.columns, tile.columns)))
    w = Writing(product.epilogue, axes, [Scope([], 1)], integer)
    params = product.params
    for k, param in enumerate(params):
        w.pointers[param.name] = f"p{k}"
    _lines(w, f"pid = tl.program_id(0).to({integer})")
    _loops(w, product, down, across)
    _tile(w, product, down, across)
    _multiply(w, product)
    for store in product.epilogue.passes[0].stores:
        _store(w, store)
    head = f"def {name}({', '.join(f'p{k}' for k in range(len(params)))}):"
    source = "\n".join([head, *flat(w.scopes[0].lines)]) + "\n"
    pointers = tuple(POINTERS[param.dtype] for param in params)
    grid = down * across * batch * tile.splits
    return replace(TritonKernel(name, source, grid, tile.columns, tile.warps, pointers), stages=tile.stages)


def _count(size: object, block: int) -> int:
    assert isinstance(size, int)
    return -(-size // block)


def _reaches(product: FusedProduct) -> bool:
    """Whether a place of an operand or of the epilogue may be beyond 32 bits, tails of tiles included."""
    tile, far = product.tile, reaches(product.epilogue)
    beyond = ((1, tile.rows, tile.depth * tile.splits * 2), (1, tile.depth * tile.splits * 2, tile.columns))
    for (place, value), more in zip(product.operands, beyond, strict=True):
        far = far or (_last(place, more) >= 1 << 31 if value is None else _reaches_computing(product, value))
    return far


def _reaches_computing(product: FusedProduct, value: Expr) -> bool:
    """The same of what an operand is computed of."""
    loops = product.batch, product.rows, product.along, product.columns
    passes = (Pass((), (), (Store("operand", index.ZERO, value),)),)
    return reaches(Kernel("operand", (), loops[:3], (), None, passes))


def _last(place: Place, more: tuple[int, ...]) -> int:
    found = place.offset
    for n, extra, step in zip(place.shape, more, place.strides, strict=True):
        found += (n + extra) * abs(step)
    assert isinstance(found, int)
    return found


def _lines(w: Writing, *lines: str) -> None:
    for line in lines:
        w.line(line)


def _loops(w: Writing, product: FusedProduct, down: int, across: int) -> None:
    """The numbers of the part of the depth and of the product; what is left in `pid` is that of the tile."""
    tiles, batch, splits = down * across, product.batch.size, product.tile.splits
    w.level_of[product.batch] = 0
    w.variables[product.batch] = "batch"
    _lines(w, f"batch = pid // {tiles}", f"pid = pid % {tiles}")
    if product.part is not None:
        w.level_of[product.part] = 0
        w.variables[product.part] = "part"
        _lines(w, f"part = batch // {batch}", f"batch = batch % {batch}")
    assert (product.part is not None) == (splits > 1)


def _tile(w: Writing, product: FusedProduct, down: int, across: int) -> None:
    """The rows and columns of the tile, and which of them there are."""
    tile, together = product.tile, min(ROWS_TOGETHER, down)
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
    for var, name, spread in ((product.rows, "rows", "[:, None]"), (product.columns, "columns", "[None, :]")):
        w.level_of[var] = 0
        w.variables[var] = w.fresh(f"{name}{spread}", w.here)
        axis = w.tile.of(var)
        assert axis is not None and isinstance(var.size, int)
        if var.size % axis.block:
            w.masks[var] = w.fresh(f"{w.variables[var]} < {var.size}", w.here)


def _multiply(w: Writing, product: FusedProduct) -> None:
    """The loop over the depth."""
    tile, k = product.tile, product.depth
    steps = -(-_count(k, tile.depth) // tile.splits)  # of each part
    start = f"part * {steps * tile.depth}" if product.part is not None else ""
    _lines(w, f"along = depth{f' + {start}' if start else ''}")
    for which, (place, value) in zip("ab", product.operands, strict=True):
        if value is None:
            _places(w, product, which, place)
    tail = k % (steps * tile.depth * tile.splits) != 0
    _lines(w, f"sums = tl.zeros([{tile.rows}, {tile.columns}], tl.float32)")
    body = Scope([], 2)
    if tail:
        w.line(f"left = {k} - k * {tile.depth}{f' - {start}' if start else ''}", body)
    if any(tile.computed):
        w.line(f"here = along + k * {tile.depth}", body)
    inside = {"a": "(depth[None, :] < left)", "b": "(depth[:, None] < left)"} if tail else {}
    for which, (_, value) in zip("ab", product.operands, strict=True):
        if value is not None:
            _compute(w, product, which, value, inside.get(which), body)
            continue
        own = w.masks.get(product.rows if which == "a" else product.columns)
        mask = " & ".join(f"({one})" for one in (own, inside.get(which)) if one)
        w.line(f"{which} = tl.load({which}_places{f', mask={mask}, other=0.0' if mask else ''})", body)
    precision = ', input_precision="tf32"' if product.dtype == "f32" else ""
    w.line(f"sums = tl.dot(a, b, sums{precision})", body)
    for which, (place, value), axis in zip("ab", product.operands, (2, 1), strict=True):
        step = place.strides[axis] if place.shape[axis] != 1 else 0
        if value is None:
            w.line(f"{which}_places += {_times(str(tile.depth), step)}", body)
    _lines(w, f"for k in range(0, {steps}):")  # behind what the body has named before the loop
    w.here.lines.append(body.lines)
    w.refs[ACCUMULATOR] = "sums"


def _places(w: Writing, product: FusedProduct, which: str, place: Place) -> None:
    """The addresses of the first tile of an operand that is read as it lies."""
    z, first, second = (step if n != 1 else 0 for n, step in zip(place.shape, place.strides, strict=True))
    parts = ("rows[:, None]", "along[None, :]") if which == "a" else ("along[:, None]", "columns[None, :]")
    where = [_times(part, step) for part, step in zip(parts, (first, second), strict=True)]
    base = [str(place.offset)] if place.offset != 0 else []
    base += [_times("batch", z)] if z != 0 else []
    tile = product.tile
    shape = (tile.rows, tile.depth) if which == "a" else (tile.depth, tile.columns)
    places = f"tl.broadcast_to({' + '.join([*base, *where])}, [{shape[0]}, {shape[1]}])"
    w.line(f"{which}_places = {w.pointers[place.source]} + {places}")


def _compute(w: Writing, product: FusedProduct, which: str, value: Expr, inside: str | None, body: Scope) -> None:
    """A tile of an operand that is computed; what of it is the same at every depth is computed before the loop."""
    tile, along = product.tile, product.along
    deep, other = (
        Axis(along, tile.depth),
        (product.rows, tile.rows) if which == "a" else (product.columns, tile.columns),
    )
    axes = (Axis(*other), deep) if which == "a" else (deep, Axis(*other))
    spread = "[None, :]" if which == "a" else "[:, None]"
    masks = {var: mask for var, mask in w.masks.items() if var is other[0]}
    if inside is not None:
        masks[along] = inside
    own = replace(
        w, tile=Tile(axes), scopes=[w.scopes[0], Scope(body.lines, body.indent)], level_of={**w.level_of, along: 1},
        variables={**w.variables, along: f"here{spread}"}, masks=masks,
    )  # fmt: skip
    text = emit(own, value)
    if DTYPES[product.dtype].compute != product.dtype:
        text = f"{text}.to({TYPES[product.dtype]})"
    text = f"tl.broadcast_to({text}, [{axes[0].block}, {axes[1].block}])"
    own.line(f"{which} = {text if inside is None else f'tl.where({inside}, {text}, 0.0)'}")
    w.count = own.count


def _times(text: str, step: object) -> str:
    assert isinstance(step, int)
    return text if step == 1 else str(int(text) * step) if text.isdigit() else f"{text} * {step}"


def _store(w: Writing, store: Store) -> None:
    """An element of each place of the tile, also where the index or the value does not tell the places apart."""
    value = emit(w, store.value)
    dtype = store.value.dtype
    if dtype == "b1":
        value = f"{value}.to(tl.int8)"
    elif DTYPES[dtype].compute != dtype:
        value = f"{value}.to({TYPES[dtype]})"
    shape = w.tile.shape(w.tile.variables)
    place = f"{w.pointers[store.buffer]} + tl.broadcast_to({position_text(w, store.index)}, {shape})"
    mask = w.mask(w.tile.variables)
    suffix = f", mask=tl.broadcast_to({mask}, {shape})" if mask is not None else ""
    assert index.picked(store.index) == ()
    w.line(f"tl.store({place}, tl.broadcast_to({value}, {shape}){suffix})")
