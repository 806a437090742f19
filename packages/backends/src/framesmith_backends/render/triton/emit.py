"""Expressions as Triton source, each named in the outermost block of lines where it is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from framesmith_backends.ir import expr as expressions
from framesmith_backends.ir.dtypes import DTYPES, FLOAT8, LOW_PRECISION, is_integer, overflow_byte
from framesmith_backends.ir.expr import (
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Number,
    Op,
    Ref,
    approximate_parts,
    children,
    indirect_parts,
    walk,
)
from framesmith_backends.ir.kernel import Check, Store
from framesmith_backends.ir.ops import APPROXIMATE, OPS, emitter, has_own
from framesmith_backends.ir.ranges import is_within
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Atom, Div, Indirect, Ix, Mod, Var
from framesmith_backends.ir.symbolic.size import Size, Sym, surely_positive
from framesmith_backends.render.triton.state import Writing

#: Operations on float32 with an approximate form for results that are rounded to bfloat16 at once.
APPROXIMATED = frozenset(name for name, row in OPS.items() if has_own(row.triton, APPROXIMATE))


def number_text(value: bool | int | float, dtype: str) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _depths(w: Writing, root: Expr) -> dict[Expr, int]:
    """For each part of the expression the scope in which it is known."""
    found: dict[Expr, int] = {}
    for node in walk(root):
        depth = max((found[child] for child in children(node)), default=0)
        if isinstance(node, Ref):
            depth = w.ref_levels.get(node.name, w.base)
        elif isinstance(node, (Load, Index)):
            ix = node.ix if isinstance(node, Index) else node.index[0]
            depth = max(depth, *(w.level_of[v] for v in index.variables(ix)), 0)
        found[node] = depth
    return found


def emit(w: Writing, root: Expr) -> str:
    """The name or text of the expression's value, named in the outermost scope where it is known."""
    names: dict[Expr, str] = {}
    depths = _depths(w, root)
    skipped = approximate_parts(root, APPROXIMATED)
    for node in depths:
        if node in skipped:
            continue
        if isinstance(node, Const):
            names[node] = _constant(node)
        elif isinstance(node, Ref):
            names[node] = w.refs[node.name]
        elif isinstance(node, Number):
            names[node] = w.numbers[node]
        else:
            scope = w.scopes[depths[node]]
            # A masked value is only good under the same mask, and so is what is computed of it.
            mask = w.mask(expressions.variables(node)) if isinstance(node, Load) else None
            key = (node, mask, *_perhaps_empty(w, ()))
            if key not in scope.names:
                scope.names[key] = w.fresh(_EMITTERS[type(node)](w, node, names), scope)
            names[node] = scope.names[key]
    return names[root]


def _constant(node: Const) -> str:
    kind = DTYPES[DTYPES[node.dtype].compute].triton
    if isinstance(node.value, float) and node.value == 0 and math.copysign(1, node.value) < 0:
        return operation("neg", (f"tl.full([], 0.0, {kind})",), "f32")  # of Triton's own constants zero has no sign
    return f"tl.full([], {number_text(node.value, node.dtype)}, {kind})"


def _cast(w: Writing, node: Cast, names: dict[Expr, str]) -> str:
    inner, target = node.value, node.dtype
    value = names.get(inner)
    if value is None:  # one of the approximate parts
        assert isinstance(inner, Op)
        value = operation(inner.name, tuple(names[arg] for arg in inner.args), APPROXIMATE)
    if target == "b1":
        return f"({value} != 0)"
    if DTYPES[node.value.dtype].kind == "f" and is_integer(target) and DTYPES[target].bits < 32:
        return f"{value}.to(tl.int64).to({DTYPES[target].triton})"
    if target in FLOAT8:
        return from_memory(to_memory(f"{value}.to(tl.float32)", target), target)
    if target in LOW_PRECISION:  # from float32, whatever it was before: so ATen does
        return f"{value}.to(tl.float32).to({DTYPES[target].triton}).to(tl.float32)"
    return f"{value}.to({DTYPES[target].triton})"


def operation(name: str, args: tuple[str, ...], dtype: str) -> str:
    """The text of an operation on operands of a type."""
    text = emitter(OPS[name].triton, dtype)
    if text is None:
        raise ValueError(f"the Triton renderer has no {name} for {dtype}")
    return text.format(*args)


def position(w: Writing, ix: Ix) -> str:
    """The index as an expression; its parts are named where they are known."""
    parts = [_term(w, atom, k) for atom, k in ix.terms]
    if ix.const != 0 or not parts:
        known = bool(parts) or isinstance(ix.const, Sym)
        parts.append(w.step(ix.const) if known else f"tl.full([], {ix.const}, {w.integer})")
    return f"({' + '.join(parts)})"


def _term(w: Writing, atom: Atom, k: Size) -> str:
    if isinstance(atom, Var):
        text = w.variables[atom]
    elif isinstance(atom, Indirect):
        text = _indirect(w, atom)
    else:
        sign = {Div: "//", Mod: "%"}[type(atom)]
        text = f"({position(w, atom.base)} {sign} {w.step(atom.divisor)})"
    return text if k == 1 else f"{text} * {w.step(k)}"


def _indirect(w: Writing, atom: Indirect) -> str:
    """The number, named where it is first known."""
    (given,) = indirect_parts(index.of(atom))
    scope = w.scopes[_depths(w, given)[given]]
    if is_within(given, atom.size):
        return emit(w, given)
    if atom not in scope.names:
        value = emit(w, given)
        inside = f"({value} >= 0) & ({value} < {w.step(atom.size)})"
        scope.names[atom] = w.fresh(f"tl.where({inside}, {value}, 0)", scope)
    return scope.names[atom]


def emit_check(w: Writing, check: Check) -> None:
    holds, mask = emit(w, check.holds), w.mask(w.tile.variables)
    if mask is not None:
        holds = f"({holds}) | ~({mask})"
    w.line(f"tl.device_assert({holds}, {check.failure.message!r})")


def _perhaps_empty(w: Writing, variables: Collection[Var]) -> list[Var]:
    """The open loops over rows that may be empty, without those of the variables.

    What is read in them is read outside, too, and a tensor without elements has no memory.
    """
    return [var for var in w.rows if var not in variables and not surely_positive(var.size)]


def _load(w: Writing, node: Load, names: dict[Expr, str]) -> str:
    (ix,) = node.index
    place = position(w, ix)
    lanes = index.variables(ix)
    if node.guard is not None:
        # A mask of lanes needs a place for each of them.
        for axis in w.tile.variables:
            if axis not in lanes and axis in expressions.variables(node.guard):
                lanes, place = lanes | {axis}, f"{place} + {w.variables[axis]} * 0"
    masks = [m for m in (w.mask(lanes), names[node.guard] if node.guard is not None else None) if m]
    masks += [f"({w.size(var.size)} > 0)" for var in _perhaps_empty(w, expressions.variables(node))]
    mask = f"({' & '.join(masks)}) != 0" if len(masks) > 1 else "".join(masks)
    suffix = f", mask={mask}, other=0" if masks else ""
    suffix += ', cache_modifier=".cg"' if node in w.past_l1 else ""
    raw = f"tl.load({w.pointers[node.source]} + {place}{suffix})"
    return from_memory(raw, node.dtype)


def from_memory(raw: str, dtype: str) -> str:
    """A loaded value as it takes part in arithmetic."""
    if dtype == "b1":
        return f"({raw} != 0)"
    row = DTYPES[dtype]
    if dtype in FLOAT8:
        return f"fs.from_float8({raw}, {row.digits}, {row.bias}, {row.special})"
    return raw if row.compute == dtype else f"{raw}.to(tl.float32)"


def stored(w: Writing, value: Expr) -> str:
    """The value as it is stored; what is stored in 8 bits is rounded to them once."""
    if value.dtype in FLOAT8 and isinstance(value, Cast):
        return to_memory(f"{emit(w, value.value)}.to(tl.float32)", value.dtype)
    return to_memory(emit(w, value), value.dtype)


def to_memory(value: str, dtype: str) -> str:
    """A value of arithmetic in the type of memory."""
    if dtype == "b1":
        return f"{value}.to(tl.int8)"
    row = DTYPES[dtype]
    if dtype in FLOAT8:
        return f"fs.to_float8({value}, {row.digits}, {row.bias}, {overflow_byte(dtype)})"
    return value if row.compute == dtype else f"{value}.to({row.triton})"


def term_added(store: Store) -> Expr | None:
    """The term added to an indirect element by threads in no order; None where the store replaces it."""
    if not index.indirect_atoms(store.index):
        return None
    assert isinstance(store.value, Op) and store.value.name == "add"
    old, term = store.value.args
    assert old is Load(store.buffer, (store.index,), store.value.dtype)
    return term


def emit_store(w: Writing, store: Store) -> None:
    term = term_added(store)
    value = stored(w, store.value if term is None else term)
    # What is added up is added at every point, wherever it goes to.
    lanes = index.variables(store.index) if term is None else w.tile.variables
    address = f"{w.pointers[store.buffer]} + {position(w, store.index)}"
    mask, shape = w.mask(lanes), w.tile.shape(lanes)
    suffix = f", mask={mask}" if mask is not None else ""
    if shape is not None:
        value = f"tl.broadcast_to({value}, {shape})"
    if term is None:
        w.line(f"tl.store({address}, {value}{suffix})")
        return
    if shape is not None:
        address = f"tl.broadcast_to({address}, {shape})"
    w.line(f'tl.atomic_add({address}, {value}{suffix}, sem="relaxed")')


_EMITTERS: dict[type, Callable[..., str]] = {
    Cast: _cast,
    Op: lambda w, node, names: operation(node.name, tuple(names[a] for a in node.args), node.args[-1].dtype),
    Index: lambda w, node, names: f"{position(w, node.ix)}.to(tl.int64)",
    Load: _load,
}
