"""Expressions, memory reads and writes in LLVM IR, each emitted in the outermost loop where it is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from framesmith_backends.ir import expr
from framesmith_backends.ir.dtypes import DTYPES, FLOAT8, LOW_PRECISION
from framesmith_backends.ir.expr import Cast, Const, Expr, Index, Load, Number, Op, Ref, children, indirect_parts, walk
from framesmith_backends.ir.kernel import Check, Store
from framesmith_backends.ir.ops import APPROXIMATE, OPS
from framesmith_backends.ir.ranges import is_within
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Div, Indirect, Ix, Mod, Var
from framesmith_backends.ir.symbolic.size import Size, Sym
from framesmith_backends.render.llvm import ops
from framesmith_backends.render.llvm.builder import Value, constant, element_bytes
from framesmith_backends.render.llvm.loops import memory
from framesmith_backends.render.llvm.loops.lanes import lane_step
from framesmith_backends.render.llvm.loops.memory import address, tile_load
from framesmith_backends.render.llvm.loops.rounding import has_short_nans, is_held_by
from framesmith_backends.render.llvm.loops.state import Rendering
from framesmith_backends.render.llvm.ops import emit_cast, emit_op, functions, to_memory

Variable = Callable[[Var], Value]

#: A zero in memory, of any type.
ZERO = "@fs.zero = internal global i64 0"
#: Up to this stride elements are read by vectors of all that lies between; measured against gathers.
LONGEST_STEP = 8
#: No index is so far from another, and no difference of two below it overflows.
FARTHEST = 1 << 62


def emit(r: Rendering, root: Expr) -> Value:
    """The value of the expression, written where it is first known; parts already known are used again."""
    skipped = expr.approximate_parts(root, functions(APPROXIMATE))
    for node in walk(root):
        if node in skipped:
            continue
        level = r.levels[_depth(r, node)]
        # A level's values also hold partial index sums, keyed by tuples.
        r.once(level, node, partial(_EMITTERS[type(node)], r, node))
    return _value(r, root)


def _value(r: Rendering, node: Expr) -> Value:
    return r.levels[_depth(r, node)].values[node]


def _depth(r: Rendering, node: Expr) -> int:
    """The level of the innermost loop the node depends on."""
    found = r.depth.get(node)
    if found is None:
        found = max((_depth(r, child) for child in children(node)), default=0)
        if isinstance(node, Ref):
            found = max(found, r.ref_level)
        elif isinstance(node, Load):
            found = max(found, r.first_reading_level(), *(_ix_depth(r, ix) for ix in node.index))
            if r.kernel.reads_again(node):
                found = len(r.levels) - 1
        elif isinstance(node, Index):
            found = max(found, _ix_depth(r, node.ix))
        r.depth[node] = found
    return found


def _ix_depth(r: Rendering, ix: Ix) -> int:
    """The level of the innermost loop that the index depends on, indirect parts included."""
    found = max((r.level_of[var] for var in index.variables(ix)), default=0)
    return max(found, *(_depth(r, value) for value in indirect_parts(ix))) if index.indirect_atoms(ix) else found


def _ref(r: Rendering, node: Ref) -> Value:
    if node.name not in r.arrays:
        return r.refs[node.name]
    array, first, kind = r.arrays[node.name]
    found = tile_load(r, tile_address(r, array, first, kind), kind)
    return ops.interleaved(r.b, found) if r.columns_deinterleaved else found


def tile_address(r: Rendering, array: Value, first: Value, kind: str) -> Value:
    """The address of the current block of lanes in an array over the tile that starts at lane `first`."""
    assert r.kernel.lane is not None
    offset = r.b.binary("sub", r.variables[r.kernel.lane], first)
    return r.b.emit(f"getelementptr {kind}, ptr {array.text}, {offset.typed}", "ptr")


def put_in_tile(r: Rendering, array: Value, first: Value, value: Value) -> None:
    """Store the value of the current block of lanes in an array over the tile that starts at lane `first`."""
    to = tile_address(r, array, first, value.kind)
    r.b.line(f"store {r.b.splat(value, r.lanes).typed}, ptr {to.text}, align 1")


def _cast(r: Rendering, node: Cast) -> Value:
    inner = node.value
    value = r.levels[_depth(r, inner)].values.get(inner)
    if value is None:  # one of the approximate parts
        assert isinstance(inner, Op)
        value = functions(APPROXIMATE)[inner.name](r.b, *(_value(r, arg) for arg in inner.args))
    if inner.dtype == "f32" and node.dtype in LOW_PRECISION and is_held_by(node.dtype, inner):
        return value
    if node.dtype == "bf16" and inner.dtype == "f32":
        return ops.round_bf16(r.b, value, has_short_nans(r.kernel, inner))
    if node.dtype == "f64" and value.kind == "float" and _is_widened_from_memory(r, value, inner):
        value = memory.through_memory(r, value)
    return emit_cast(r.b, value, inner.dtype, node.dtype)


def _is_widened_from_memory(r: Rendering, value: Value, inner: Expr) -> bool:
    read = isinstance(inner, Load) and inner.dtype == "f32"
    return r.b.avx2 and value.lanes >= r.target.float_lanes and not read


def _op(r: Rendering, node: Op) -> Value:
    counted = _counted_lanes(r, node)
    if counted is not None:
        return counted
    return emit_op(r.b, node.name, tuple(_value(r, arg) for arg in node.args), node.args[-1].dtype)


def lane_numbers(r: Rendering, kind: str = "i64") -> Value:
    return Value(f"<{', '.join(f'{kind} {k}' for k in range(r.lanes))}>", kind, r.lanes)


def _counted_lanes(r: Rendering, node: Op) -> Value | None:
    """A comparison of an index that grows by one a lane with what is the same in all: of a lane's number, in a byte.

    Vectors of 64 bits would be eight times as many. None for other operations.
    """
    if r.lanes == 1 or OPS[node.name].result != "b1" or len(node.args) != 2:
        return None
    grows, same = node.args
    if not isinstance(grows, Index) or lane_step(r.kernel, grows.ix) != 1:
        return None
    if isinstance(same, Const):
        if abs(same.value) >= FARTHEST:
            return None
    elif not isinstance(same, Index) or _value(r, same).lanes > 1:
        return None
    count = r.b.binary("sub", _value(r, same), scalar_index(r, grows.ix))
    # No lane has the number -1, nor that of the lanes.
    near = r.b.intrinsic("smin", r.b.intrinsic("smax", count, r.b.number(-1, count)), r.b.number(r.lanes, count))
    return emit_op(r.b, node.name, (lane_numbers(r, "i8"), r.b.convert("trunc", near, "i8")), "i8")


def _load(r: Rendering, node: Load) -> Value:
    (ix,) = node.index
    guard = None if node.guard is None else _value(r, node.guard)
    step = lane_step(r.kernel, ix)
    kind = DTYPES[node.dtype].memory
    if node in r.transposed:
        (point,) = r.kernel.row
        position = r.b.binary("mul nsw", r.variables[point], r.lanes)
        pointer = r.b.emit(f"getelementptr {kind}, ptr {r.transposed[node].text}, {position.typed}", "ptr")
        raw = tile_load(r, pointer, kind)
    elif _is_wide_scratch(r, node.source):
        pointer = address(r, node.source, kind, _wide_position(r, ix))
        raw = tile_load(r, pointer, kind)
    elif step == 0:
        raw = _scalar_load(r, node.source, ix, kind, guard)
    elif step == 1:
        pointer = address(r, node.source, kind, scalar_index(r, ix))
        mask = guard if r.mask is None else _both(r, guard)
        raw = tile_load(r, pointer, kind) if mask is None else memory.masked_tile_load(r, pointer, mask, kind)
        if r.deinterleaved and r.mask is None:
            return ops.from_memory_deinterleaved(r.b, raw)
    elif (offsets := _near_offsets(r, ix)) is not None and (mask := _both(r, guard)) is None:
        raw = memory.spread_load(r, node.source, scalar_index(r, ix), offsets, kind)
    elif offsets is not None and mask is not None and memory.is_read_at_once(offsets):
        raw = memory.masked_spread_load(r, node.source, scalar_index(r, ix), offsets, kind, r.b.splat(mask, r.lanes))
    else:
        pointers = address(r, node.source, kind, _lane_indices(r, ix))
        mask = _both(r, guard) or constant(True, "i1", r.lanes)
        raw = r.b.masked_load(pointers, r.b.splat(mask, r.lanes), kind)
    return ops.from_memory(r.b, raw, node.dtype)


def _near_offsets(r: Rendering, ix: Ix) -> tuple[int, ...] | None:
    """Offsets of the lanes' elements from the first lane's, in every block of lanes; None if far, or not known."""
    lane = r.kernel.lane
    indirect = lane in r.kernel.outer and indirect_parts(ix)
    if lane is None or r.lanes == 1 or (indirect and lane_step(r.kernel, ix) is None):
        return None
    offsets = index.block_offsets(ix, lane, r.lanes)
    return offsets if offsets and max(offsets) - min(offsets) <= LONGEST_STEP * (r.lanes - 1) else None


def _is_wide_scratch(r: Rendering, name: str) -> bool:
    """Whether this is a scratch row that holds all lanes of each of its elements, the lanes being outer."""
    return r.lanes > 1 and r.kernel.lane in r.kernel.outer and any(s.name == name for s in r.kernel.scratch)


def _wide_position(r: Rendering, ix: Ix) -> Value:
    return r.b.binary("mul nsw", scalar_index(r, ix), r.lanes)


def _scalar_load(r: Rendering, source: str, ix: Ix, kind: str, guard: Value | None) -> Value:
    """A load of one element; under a condition it is that of a zero where it does not hold."""
    position = scalar_index(r, ix)
    if guard is None:
        return tile_load(r, address(r, source, kind, position), kind, 1)
    if guard.lanes > 1:
        mask = _both(r, guard)
        assert mask is not None
        return r.b.masked_load(r.b.splat(address(r, source, kind, position), r.lanes), mask, kind)
    r.b.declare(ZERO)
    pointer = r.b.select(guard, address(r, source, kind, position), Value("@fs.zero", "ptr"))
    return tile_load(r, pointer, kind, 1)


def _both(r: Rendering, guard: Value | None) -> Value | None:
    """The lanes to be read: those of the guard and of the mask of an incomplete block."""
    if guard is not None:
        guard = r.b.splat(guard, r.lanes)
    if r.mask is None or guard is None:
        return guard if r.mask is None else r.mask
    return r.b.binary("and", guard, r.mask)


def _lane_indices(r: Rendering, ix: Ix) -> Value:
    """The index in each lane."""
    step = lane_step(r.kernel, ix)
    if step is not None:
        base = scalar_index(r, ix)
        if r.lanes == 1 or step == 0:
            return base
        if isinstance(step, Sym):
            return r.b.add(base, r.b.mul(lane_numbers(r), r.size_of(step)))
        offsets = ", ".join(f"i64 {k * step}" for k in range(r.lanes))
        return r.b.binary("add", base, Value(f"<{offsets}>", "i64", r.lanes))

    def variable(var: Var) -> Value:
        value = r.variables[var]
        return value if var is not r.kernel.lane or r.lanes == 1 else r.b.add(value, lane_numbers(r))

    return r.b.splat(_general(r, ix, variable), r.lanes)


def scalar_index(r: Rendering, ix: Ix) -> Value:
    """The index at the first lane. Terms of outer loops are summed in those loops."""
    by_level: dict[int, list[tuple[index.Atom, Size]]] = {}
    for atom, k in ix.terms:
        by_level.setdefault(_ix_depth(r, index.of(atom)), []).append((atom, k))
    known: tuple[object, ...] = ("index", ix.const)
    total = r.size_of(ix.const)
    for depth, terms in sorted(by_level.items()):
        known = (*known, *terms)
        total = r.once(r.levels[depth], known, partial(_sum, r, total, terms, r.variables.__getitem__))
    return total


def _sum(r: Rendering, total: Value, terms: Iterable[tuple[index.Atom, Size]], variable: Variable) -> Value:
    for atom, k in terms:
        value = _atom(r, atom, variable)
        if k != 1:
            value = r.b.binary("mul nsw", value, r.size_of(k))
        total = value if total.text == "0" else r.b.binary("add nsw", total, value)
    return total


def _general(r: Rendering, ix: Ix, variable: Variable) -> Value:
    return _sum(r, r.size_of(ix.const), ix.terms, variable)


def _atom(r: Rendering, atom: index.Atom, variable: Variable) -> Value:
    if isinstance(atom, Var):
        return variable(atom)
    if isinstance(atom, Indirect):
        return _indirect(r, atom)
    op = {Div: "udiv", Mod: "urem"}[type(atom)]
    return r.b.binary(op, _general(r, atom.base, variable), r.divisor_of(atom.divisor))


def _indirect(r: Rendering, atom: Indirect) -> Value:
    """The number, written where it is first known: outside the loops along which a row is read."""
    (given,) = indirect_parts(index.of(atom))
    value = emit(r, given)
    if is_within(given, atom.size):
        return value

    def bounded() -> Value:
        inside = r.b.compare("ult", value, r.size_of(atom.size))
        return r.b.select(inside, value, r.b.number(0, value))

    return r.once(r.levels[_depth(r, given)], atom, bounded)


def emit_check(r: Rendering, check: Check, number: int) -> None:
    """Set the check's byte where it does not hold, in a lane that is not masked."""
    holds = emit(r, check.holds)
    fails = r.b.binary("xor", holds, True)
    if r.mask is not None:
        fails = r.b.binary("and", fails, r.mask)
    if fails.lanes > 1:
        r.b.declare(f"declare i1 @llvm.vector.reduce.or.v{fails.lanes}i1({fails.type})")
        fails = r.b.emit(f"call i1 @llvm.vector.reduce.or.v{fails.lanes}i1({fails.typed})", "i1")
    assert r.failed is not None
    n = r.b.name()[1:]
    r.b.out += [
        f"br i1 {fails.text}, label %{n}.fails, label %{n}.holds, !prof !0", f"{n}.fails:",
        f"%{n}.word = getelementptr i8, ptr {r.failed.text}, i64 {number}",
        f"store atomic i8 1, ptr %{n}.word monotonic, align 1", f"br label %{n}.holds", f"{n}.holds:",
    ]  # fmt: skip


def emit_store(r: Rendering, store: Store) -> None:
    """Write one element, or one for each lane."""
    value, dtype, ix = _unrounded(r, store.value), store.value.dtype, store.index
    step = lane_step(r.kernel, ix)
    kind, wide = DTYPES[dtype].memory, _is_wide_scratch(r, store.buffer)
    if wide or step != 0:
        value = r.b.splat(value, r.lanes)
    deinterleaved = not wide and step != 0 and r.deinterleaved and r.mask is None
    raw = ops.to_memory_deinterleaved(r.b, value) if deinterleaved else to_memory(r.b, value, dtype)
    at = _wide_position if wide else scalar_index if step in (0, 1) else _lane_indices
    pointer = address(r, store.buffer, kind, at(r, ix))
    if wide or step == 0 or r.lanes == 1 or (step == 1 and r.mask is None):
        r.b.line(f"store {raw.typed}, {pointer.typed}, align {element_bytes(kind)}")
    else:
        r.b.masked_store(raw, pointer, r.mask or constant(True, "i1", r.lanes))


def _unrounded(r: Rendering, value: Expr) -> Value:
    """The value to be stored; of float8 the unrounded one, which `to_memory` rounds."""
    if value.dtype in FLOAT8 and isinstance(value, Cast):
        return emit_cast(r.b, emit(r, value.value), value.value.dtype, "f32")
    return emit(r, value)


def emit_stores(r: Rendering, stores: tuple[Store, ...]) -> None:
    """The stores in order; interleaved ones that fill memory without gaps as whole vectors."""
    while stores:
        count = next((n for n in (4, 2) if _side_by_side(r, stores[:n], n)), 1)
        if count == 1:
            emit_store(r, stores[0])
        else:
            _interleaved_store(r, stores[:count])
        stores = stores[count:]


def _side_by_side(r: Rendering, stores: tuple[Store, ...], count: int) -> bool:
    """Whether in whole blocks of lanes these stores fill memory without gaps."""
    lane, first = r.kernel.lane, stores[0]
    if len(stores) < count or lane is None or r.lanes == 1 or r.mask is not None:
        return False
    wanted = [(first.buffer, index.add(first.index, index.const(k))) for k in range(count)]
    given = [(store.buffer, store.index) for store in stores]
    return given == wanted and index.coefficient(first.index, lane) == count and not _is_wide_scratch(r, first.buffer)


def _interleaved_store(r: Rendering, stores: tuple[Store, ...]) -> None:
    dtype = stores[0].value.dtype
    kind = DTYPES[dtype].memory
    rows = [to_memory(r.b, r.b.splat(_unrounded(r, store.value), r.lanes), dtype) for store in stores]
    while len(rows) > 1:
        half, lanes = len(rows) // 2, rows[0].lanes
        order = [k // 2 + k % 2 * lanes for k in range(2 * lanes)]
        rows = [r.b.shuffle(order, *pair) for pair in zip(rows[:half], rows[half:], strict=True)]
    pointer = address(r, stores[0].buffer, kind, scalar_index(r, stores[0].index))
    r.b.line(f"store {rows[0].typed}, ptr {pointer.text}, align {element_bytes(kind)}")


_EMITTERS: dict[type, Callable[..., Value]] = {
    Const: lambda r, node: constant(node.value, DTYPES[node.dtype].register),
    Number: lambda r, node: r.numbers[node],
    Ref: _ref,
    Cast: _cast,
    Op: _op,
    Index: lambda r, node: _lane_indices(r, node.ix),
    Load: _load,
}
