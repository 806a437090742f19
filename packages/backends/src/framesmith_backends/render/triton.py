"""One kernel as the source of a Triton function: the same loops, a program for each outer point or lane block.

The text needs `tl` and the functions of `launch.triton_support` (as `fs`) in its globals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from framesmith_backends.ir import index
from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Cast, Const, Expr, Index, Load, Op, Ref, children, walk
from framesmith_backends.ir.index import Atom, Div, Ix, Mod, Var
from framesmith_backends.ir.kernel import Accumulate, Kernel, Pass, Store
from framesmith_backends.ir.ops import REDUCTIONS
from framesmith_backends.ir.size import Size, hint, product
from framesmith_backends.render.nested_lines import flat

TYPES = {
    "b1": "tl.int1", "u8": "tl.uint8", "i8": "tl.int8", "i16": "tl.int16", "i32": "tl.int32", "i64": "tl.int64",
    "f16": "tl.float16", "bf16": "tl.bfloat16", "f32": "tl.float32", "f64": "tl.float64",
}  # fmt: skip
# Pointer types of a compiled signature. Bools are stored as bytes.
POINTERS = {
    "b1": "*i8", "u8": "*u8", "i8": "*i8", "i16": "*i16", "i32": "*i32", "i64": "*i64",
    "f16": "*fp16", "bf16": "*bf16", "f32": "*fp32", "f64": "*fp64",
}  # fmt: skip

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "and": "&", "or": "|", "xor": "^",
}  # fmt: skip
# Functions of the support module, of the same names.
CALLS = frozenset((
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "atan2",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid", "rsqrt", "sqrt", "hypot",
    "gelu", "gelu_tanh", "silu", "mish", "dgelu", "dgelu_tanh", "dsilu", "dmish",
    "pow", "fmod", "floor", "ceil", "round", "trunc", "copysign", "signbit", "div", "max", "min",
))  # fmt: skip
# Rows up to this long are held in registers at once; longer ones, and outer lanes, go in blocks.
WHOLE_ROW, ROW_BLOCK, LANE_BLOCK = 4096, 2048, 1024


@dataclass(slots=True)
class Scope:
    """A block of lines at one indentation, and the values named in it."""

    lines: list[object]
    indent: int
    names: dict[object, str] = field(default_factory=dict)


@dataclass(slots=True)
class Writing:
    """The state of writing one kernel; `scopes[k]` is the body of the k-th open loop, 0 the function's own."""

    kernel: Kernel
    block: int
    scopes: list[Scope]
    level_of: dict[Var, int] = field(default_factory=dict)
    variables: dict[Var, str] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    pointers: dict[str, str] = field(default_factory=dict)
    mask: str | None = None
    ref_level: int = 0
    count: int = 0

    @property
    def here(self) -> Scope:
        return self.scopes[-1]

    def fresh(self, text: str, scope: Scope) -> str:
        self.count += 1
        name = f"v{self.count}"
        self.line(f"{name} = {text}", scope)
        return name

    def line(self, text: str, scope: Scope | None = None) -> None:
        target = self.here if scope is None else scope
        target.lines.append("    " * target.indent + text)


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """The source of a function `name(p0, p1, ..., BLOCK)`, its grid, and the types of its pointers."""

    name: str
    source: str
    grid: int
    block: int
    warps: int
    pointers: tuple[str, ...]


def why_not_triton(kernel: Kernel) -> str | None:
    """Why the kernel cannot be rendered, or None."""
    if kernel.numbers:
        return "its sizes or numbers change between calls"
    return "it keeps rows in scratch memory" if kernel.scratch else None


def render_triton(kernel: Kernel, name: str) -> TritonKernel:
    """The Triton form of the kernel; a ValueError where `why_not_triton` has a reason."""
    problem = why_not_triton(kernel)
    if problem is not None:
        raise ValueError(f"kernel {kernel.name} has no Triton form: {problem}")
    block = block_of(kernel)
    w = Writing(kernel, block, [Scope([], 1)])
    for k, param in enumerate(kernel.params):
        w.pointers[param.name] = f"p{k}"
    grid = _program(w)
    arguments = ", ".join([*w.pointers.values(), "BLOCK: tl.constexpr"])
    source = "\n".join([f"def {name}({arguments}):", *flat(w.scopes[0].lines)]) + "\n"
    pointers = tuple(POINTERS[p.dtype] for p in kernel.params)
    return TritonKernel(name, source, grid, block, min(max(block // 256, 1), 16), pointers)


def block_of(kernel: Kernel) -> int:
    """The number of lanes: a power of two covering the row if it is short, else a block of it."""
    if kernel.lane is None:
        return 1
    covering = 1 << (hint(kernel.lane.size) - 1).bit_length()
    if kernel.lane in kernel.row:
        return covering if covering <= WHOLE_ROW else ROW_BLOCK
    return min(covering, LANE_BLOCK)


def _program(w: Writing) -> int:
    """Name the outer variables from the program's number, write the passes; returns the number of programs."""
    k, lane = w.kernel, w.kernel.lane
    others = [v for v in k.outer if v is not lane]
    grid = hint(product(v.size for v in others))
    w.line("pid = tl.program_id(0).to(tl.int64)")
    point = "pid"
    if lane is not None and lane in k.outer:
        blocks = -(-hint(lane.size) // w.block)
        grid *= blocks
        w.line(f"lane = pid % {blocks} * BLOCK + tl.arange(0, BLOCK).to(tl.int64)")
        w.line(f"point = pid // {blocks}")
        _open_lane(w, lane, "lane", lane.size % w.block != 0)
        point = "point"
    for position, var in enumerate(reversed(others)):
        w.level_of[var] = 0
        last = position == len(others) - 1
        w.variables[var] = w.fresh(point if last else f"{point} % {var.size}", w.here)
        if not last:
            point = w.fresh(f"{point} // {var.size}", w.here)
    for one in k.passes:
        for store in one.before:
            _store(w, store, row=False)
        if one.has_loop:
            _pass(w, one)
    return grid


def _open_lane(w: Writing, lane: Var, name: str, masked: bool) -> None:
    w.level_of[lane] = len(w.scopes) - 1
    w.variables[lane] = name
    if masked:
        w.mask = w.fresh(f"{name} < {lane.size}", w.here)


def _pass(w: Writing, one: Pass) -> None:
    k, lane = w.kernel, w.kernel.lane
    inner = lane if lane in k.row else None
    cells = [_start(w, a) for a in one.reductions]
    depth = len(w.scopes)
    for var in (v for v in k.row if v is not inner):
        _open_loop(w, var, f"range({var.size})", f"r_{var.name}")
    if inner is not None:
        _row_lanes(w, inner)
    for cell, a in zip(cells, one.reductions, strict=True):
        _accumulate(w, cell, a, inner is not None)
    if k.writes_what_it_reads:
        for store in one.stores:
            _emit(w, store.value)
    for store in one.stores:
        _store(w, store, row=True)
    _close(w, depth)
    if inner is not None:
        w.mask = None
    for cell, a in zip(cells, one.reductions, strict=True):
        w.refs[a.name] = f"fs.reduce_{a.kind}({cell})" if inner is not None else cell
        w.refs[a.name] = w.fresh(w.refs[a.name], w.here)


def _row_lanes(w: Writing, lane: Var) -> None:
    """The lanes along the row: all at once if the block covers the row, else in a loop."""
    if w.block >= lane.size:
        known = w.here.names.get(("lane", lane))
        if known is None:
            known = w.here.names["lane", lane] = w.fresh("tl.arange(0, BLOCK).to(tl.int64)", w.here)
        _open_lane(w, lane, known, w.block != lane.size)
        return
    start = f"start{w.count}"
    _open_loop(w, None, f"range(0, {lane.size}, BLOCK)", start)
    name = w.fresh(f"{start} + tl.arange(0, BLOCK).to(tl.int64)", w.here)
    _open_lane(w, lane, name, lane.size % w.block != 0)


def _open_loop(w: Writing, var: Var | None, over: str, name: str) -> None:
    body: list[object] = []
    outer = w.here
    w.scopes.append(Scope(body, outer.indent + 1))
    if var is not None:
        w.level_of[var] = len(w.scopes) - 1
        w.variables[var] = name
    # The loop's head is written when it is closed, after what its body needs from outside.
    w.here.names["head"] = "    " * outer.indent + f"for {name} in {over}:"


def _close(w: Writing, depth: int) -> None:
    while len(w.scopes) > depth:
        inner = w.scopes.pop()
        w.here.lines += [inner.names["head"], inner.lines]


def _start(w: Writing, a: Accumulate) -> str:
    dtype = a.value.dtype
    value = _number(REDUCTIONS[a.kind].start(dtype), dtype)
    return w.fresh(f"tl.full([BLOCK], {value}, {TYPES[dtype]})", w.here)


def _accumulate(w: Writing, cell: str, a: Accumulate, lanes_reduced: bool) -> None:
    value = _emit(w, a.value)
    dtype = a.value.dtype
    if lanes_reduced and w.mask is not None:
        value = f"tl.where({w.mask}, {value}, {_number(REDUCTIONS[a.kind].start(dtype), dtype)})"
    w.line(f"{cell} = {_operation(REDUCTIONS[a.kind].combine, (value, cell), dtype)}")


def _number(value: bool | int | float, dtype: str) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _depths(w: Writing, root: Expr) -> dict[Expr, int]:
    """For each part of the expression the scope in which it is known."""
    found: dict[Expr, int] = {}
    for node in walk(root):
        depth = max((found[child] for child in children(node)), default=0)
        if isinstance(node, Load):
            depth = max(depth, _ix_depth(w, node.index[0]))
        elif isinstance(node, Index):
            depth = max(depth, _ix_depth(w, node.ix))
        found[node] = depth
    return found


def _ix_depth(w: Writing, ix: Ix) -> int:
    return max((w.level_of[v] for v in index.variables(ix)), default=0)


def _emit(w: Writing, root: Expr) -> str:
    """The name or text of the expression's value, named in the outermost scope where it is known."""
    names: dict[Expr, str] = {}
    depths = _depths(w, root)
    for node in depths:
        if isinstance(node, Const):
            names[node] = _constant(node)
        elif isinstance(node, Ref):
            names[node] = w.refs[node.name]
        else:
            scope = w.scopes[depths[node]]
            # A masked value is only good under the same mask.
            key = (node, w.mask if isinstance(node, Load) else None)
            if key not in scope.names:
                scope.names[key] = w.fresh(_EMITTERS[type(node)](w, node, names), scope)
            names[node] = scope.names[key]
    return names[root]


def _constant(node: Const) -> str:
    kind = DTYPES[node.dtype].compute
    return f"tl.full([], {_number(node.value, node.dtype)}, {TYPES[kind]})"


def _cast(w: Writing, node: Cast, names: dict[Expr, str]) -> str:
    value, target = names[node.value], node.dtype
    if target == "b1":
        return f"({value} != 0)"
    if DTYPES[node.value.dtype].kind == "f" and target in ("u8", "i8", "i16"):
        return f"{value}.to(tl.int64).to({TYPES[target]})"
    rounded = f"{value}.to({TYPES[target]})"
    return f"{rounded}.to(tl.float32)" if target in ("f16", "bf16") else rounded


def _op(w: Writing, node: Op, names: dict[Expr, str]) -> str:
    return _operation(node.name, tuple(names[a] for a in node.args), node.args[-1].dtype)


def _operation(name: str, args: tuple[str, ...], dtype: str) -> str:
    if name in INFIX:
        return f"({args[0]} {INFIX[name]} {args[1]})"
    if name == "where":
        return f"tl.where({', '.join(args)})"
    if name == "neg":
        return f"(-{args[0]})"
    if name == "not":
        return f"({args[0]} == 0)" if dtype == "b1" else f"(~{args[0]})"
    if name == "abs":
        return f"tl.abs({args[0]})"
    if name == "isnan":
        return f"({args[0]} != {args[0]})"
    if name in ("div", "sqrt", "rsqrt") and dtype == "f64":
        return {"div": "({0} / {1})", "sqrt": "tl.sqrt({0})", "rsqrt": "(1.0 / tl.sqrt({0}))"}[name].format(*args)
    if name == "idiv":
        return f"({args[0]} // {args[1]})"
    if name in ("max", "min", "fmod") and DTYPES[dtype].kind != "f":
        return f"fs.{name}_integer({', '.join(args)})"
    if name in CALLS:
        return f"fs.{name}({', '.join(args)})"
    raise ValueError(f"the Triton renderer has no {name}")


def _index(w: Writing, node: Index, names: dict[Expr, str]) -> str:
    return _position(w, node.ix)


def _position(w: Writing, ix: Ix) -> str:
    parts = [_term(w, atom, k) for atom, k in ix.terms]
    if ix.const or not parts:
        parts.append(str(ix.const) if parts else f"tl.full([], {ix.const}, tl.int64)")
    return f"({' + '.join(parts)})"


def _term(w: Writing, atom: Atom, k: Size) -> str:
    if isinstance(atom, Var):
        text = w.variables[atom]
    else:
        sign = {Div: "//", Mod: "%"}[type(atom)]
        text = f"({_position(w, atom.base)} {sign} {atom.divisor})"
    return text if k == 1 else f"{text} * {k}"


def _load(w: Writing, node: Load, names: dict[Expr, str]) -> str:
    (ix,) = node.index
    lanes = w.kernel.lane is not None and w.kernel.lane in index.variables(ix)
    masks = [m for m in (w.mask if lanes else None, names[node.guard] if node.guard is not None else None) if m]
    # `!= 0`: in Triton 3.9's interpreter `&` of a scalar and a block holds integers, which a mask must not.
    mask = f"({' & '.join(masks)}) != 0" if len(masks) > 1 else "".join(masks)
    suffix = f", mask={mask}, other=0" if masks else ""
    raw = f"tl.load({w.pointers[node.source]} + {_position(w, ix)}{suffix})"
    if node.dtype == "b1":
        return f"({raw} != 0)"
    return f"{raw}.to(tl.float32)" if node.dtype in ("f16", "bf16") else raw


def _store(w: Writing, store: Store, row: bool) -> None:
    value = _emit(w, store.value)
    lane = w.kernel.lane
    lanes = lane is not None and lane in index.variables(store.index)
    if store.value.dtype == "b1":
        value = f"{value}.to(tl.int8)"
    elif store.value.dtype in ("f16", "bf16"):
        value = f"{value}.to({TYPES[store.value.dtype]})"
    position = _position(w, store.index)
    # A constant value or place is spread over the lanes by adding nothing from them.
    mask = f", mask={w.mask}" if lanes and w.mask is not None else ""
    if lanes:
        value = f"tl.broadcast_to({value}, [BLOCK])"
    w.line(f"tl.store({w.pointers[store.buffer]} + {position}, {value}{mask})")


_EMITTERS: dict[type, Callable[..., str]] = {Cast: _cast, Op: _op, Index: _index, Load: _load}
