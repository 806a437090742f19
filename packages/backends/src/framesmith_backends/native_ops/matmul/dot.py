"""Matmuls whose operands both lie along the inner dimension, with few rows: dot products, nothing packed."""

from __future__ import annotations

from collections.abc import Iterable

from framesmith_backends.native_ops.matmul.pack import transposed
from framesmith_backends.native_ops.matmul.rectangle import Element
from framesmith_backends.render.llvm.builder import Value, constant
from framesmith_backends.render.llvm.writer import ZERO, Writer, parameters, signature

NAMES = ("ptr a", "ptr b", "ptr c", "ptr bias", "i64 m", "i64 n", "i64 k", "i64 a_row", "i64 b_col", "i64 c_row",
         "float alpha", "float beta")  # fmt: skip


def dot_name(rows: int) -> str:
    return f"@fs.dot.{rows}"


def dot_heights(lanes: int) -> tuple[int, ...]:
    """Rows of a tile of dot products: as many sums as a vector has lanes, so that one transposition adds them up."""
    return tuple(r for r in (4, 1) if r <= lanes // 4) or (1,)


def dot_kernel(w: Writer, lanes: int, rows: int, element: Element | None) -> str:
    """c = alpha * (a @ b) + (beta * c + bias), a's rows and b's columns being contiguous."""
    p = parameters(*NAMES)
    columns = lanes // rows
    last_row, last_column = w.sub(p["m"], 1), w.sub(p["n"], 1)
    whole = w.binary("and", p["k"], -lanes)
    rest = w.first_lanes(w.sub(p["k"], whole), lanes)
    has_rest = w.compare("ult", whole, p["k"])
    with w.loop(ZERO, p["n"], columns) as j:
        heads_b = [w.at(p["b"], w.mul(w.least(w.add(j, q), last_column), p["b_col"])) for q in range(columns)]
        with w.loop(ZERO, p["m"], rows) as i:
            heads_a = [w.at(p["a"], w.mul(w.least(w.add(i, r), last_row), p["a_row"])) for r in range(rows)]
            sums = [w.cell(constant(0.0, "float", lanes)) for _ in range(rows * columns)]
            for cell in sums:
                w.store(constant(0.0, "float", lanes), cell, 0)
            with w.loop(ZERO, whole, lanes) as k:
                left = [w.load(w.at(head, k), "float", lanes) for head in heads_a]
                right = (w.load(w.at(head, k), "float", lanes) for head in heads_b)
                _accumulate(w, left, right, sums)
            with w.when(has_rest):
                left = [w.masked_load(w.at(head, whole), rest) for head in heads_a]
                right = (w.masked_load(w.at(head, whole), rest) for head in heads_b)
                _accumulate(w, left, right, sums)
            passed = ", ".join(w.read(cell, "float", lanes).typed for cell in sums)
            total = w.emit(f"call fastcc <{lanes} x float> @fs.totals({passed})", "float", lanes)
            for r in range(rows):
                with w.when(w.compare("ult", w.add(i, r), p["m"])):
                    _finish(w, p, total, (i, j, r), columns, element)
    return w.function(f"define internal void {dot_name(rows)}({signature(NAMES)})")


def totals(w: Writer, lanes: int) -> str:
    """The sum of each of as many vectors as they have lanes, as one vector."""
    parts = transposed(w, [Value(f"%s{k}", "float", lanes) for k in range(lanes)])
    while len(parts) > 1:
        parts = [w.add(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    typed = ", ".join(f"<{lanes} x float> %s{k}" for k in range(lanes))
    head = f"define internal fastcc <{lanes} x float> @fs.totals({typed}) noinline"
    return w.function(head, f"ret {parts[0].typed}")


def _accumulate(w: Writer, left: list[Value], right: Iterable[Value], sums: list[Value]) -> None:
    columns = len(sums) // len(left)
    for q, other in enumerate(right):
        for one, cell in zip(left, sums[q::columns], strict=True):
            w.store(w.fma(one, other, w.read(cell, "float", one.lanes)), cell, 0)


def _finish(
    w: Writer, p: dict[str, Value], total: Value, at: tuple[Value, Value, int], columns: int, element: Element | None
) -> None:
    """Write one row of the tile."""
    i, j, r = at
    lanes = total.lanes
    # The row's sums, moved to the first lanes.
    row = w.shuffle([(r * columns + k) % lanes for k in range(lanes)], total) if r else total
    inside = w.first_lanes(w.least(w.sub(p["n"], j), columns), lanes)
    nothing = constant(0, "i1", lanes)
    reads = w.select(w.splat(w.compare("une", p["beta"], 0.0), lanes), inside, nothing)
    biased = w.is_set(p["bias"])
    bias = w.masked_load(w.at(p["bias"], j), w.select(w.splat(biased, lanes), inside, nothing))
    place = w.at(w.at(p["c"], w.mul(w.add(i, r), p["c_row"])), j)
    scaled = w.fma(w.masked_load(place, reads), w.splat(p["beta"], lanes), bias)
    value = w.fma(row, w.splat(p["alpha"], lanes), scaled)
    w.masked_store(value if element is None else element(w, value), place, inside)
