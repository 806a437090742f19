"""Packing: a strip of a matrix as it is read by a register tile, one step of the inner dimension after another."""

from __future__ import annotations

from framesmith_backends.render.llvm.builder import Value, constant
from framesmith_backends.render.llvm.writer import ZERO, Writer, parameters, signature


def pack(w: Writer, lanes: int) -> str:
    """to[k * width + i] = source[i * i_step + k * k_step] for i < count, in steps of whole vectors along i.

    Beyond `count`, `to` has undefined numbers up to whole vectors; it must have room for one vector more.
    """
    names = ("ptr source", "i64 i_step", "i64 k_step", "i64 count", "i64 depth", "ptr to", "i64 width")
    p = parameters(*names)
    aside = w.compare("eq", p["i_step"], 1)
    down = w.binary("and", w.compare("eq", p["k_step"], 1), w.compare("uge", p["depth"], lanes))
    w.line(f"br i1 {aside.text}, label %copy, label %ask")
    w.line("copy:")
    _copied(w, p, lanes)
    w.line("ret void")
    w.line("ask:")
    w.line(f"br i1 {down.text}, label %across, label %single")
    w.line("across:")
    _transposed(w, p, lanes)
    w.line("ret void")
    w.line("single:")
    with w.loop(ZERO, p["depth"]) as k:
        row, goal = w.at(p["source"], w.mul(k, p["k_step"])), w.at(p["to"], w.mul(k, p["width"]))
        with w.loop(ZERO, p["count"]) as i:
            w.store(w.load(w.at(row, w.mul(i, p["i_step"])), "float"), w.at(goal, i))
    return w.function(f"define internal void @fs.pack({signature(names)})")


def _copied(w: Writer, p: dict[str, Value], lanes: int) -> None:
    """Along contiguous memory: whole vectors, the last of them masked.

    Vectors are written in order: each may reach into the next, which then overwrites it.
    """
    with w.loop(ZERO, p["depth"]) as k:
        row, goal = w.at(p["source"], w.mul(k, p["k_step"])), w.at(p["to"], w.mul(k, p["width"]))
        with w.loop(ZERO, p["count"], lanes) as i:
            mask = w.first_lanes(w.sub(p["count"], i), lanes)
            w.store(w.masked_load(w.at(row, i), mask), w.at(goal, i))


def _transposed(w: Writer, p: dict[str, Value], lanes: int) -> None:
    """Across contiguous memory: square blocks transposed in registers. The last block lies over the one before."""
    final = w.sub(p["depth"], lanes)
    most = w.sub(p["count"], 1)
    with w.loop(ZERO, p["count"], lanes) as i:
        rows = [w.at(p["source"], w.mul(w.least(w.add(i, r), most), p["i_step"])) for r in range(lanes)]
        with w.loop(ZERO, p["depth"], lanes) as k:
            start = w.least(k, final)
            block = transposed(w, [w.load(w.at(row, start), "float", lanes) for row in rows])
            goal = w.at(p["to"], w.add(w.mul(start, p["width"]), i))
            for vector in block:
                w.store(vector, goal)
                goal = w.at(goal, p["width"])


def transposed(w: Writer, rows: list[Value]) -> list[Value]:
    """A square of vectors, transposed: first within parts of four lanes, which is cheap, then those parts."""
    lanes = rows[0].lanes
    quads = [_transposed_quads(w, rows[g : g + 4]) for g in range(0, lanes, 4)]
    found: list[Value] = [constant(0.0, "float", lanes)] * lanes
    for j in range(4):
        for block, value in enumerate(_transposed_parts(w, [q[j] for q in quads])):
            found[4 * block + j] = value
    return found


def _transposed_quads(w: Writer, rows: list[Value]) -> list[Value]:
    lanes = rows[0].lanes

    def unpack(a: Value, b: Value, high: int, size: int) -> Value:
        picks = []
        for base in range(0, lanes, 4):
            first = base + high * 2
            picks += [first, first + lanes, first + 1, first + 1 + lanes] if size == 1 else \
                     [first, first + 1, first + lanes, first + 1 + lanes]  # fmt: skip
        return w.shuffle(picks, a, b)

    low01, low23 = unpack(rows[0], rows[1], 0, 1), unpack(rows[2], rows[3], 0, 1)
    high01, high23 = unpack(rows[0], rows[1], 1, 1), unpack(rows[2], rows[3], 1, 1)
    return [
        unpack(low01, low23, 0, 2), unpack(low01, low23, 1, 2),
        unpack(high01, high23, 0, 2), unpack(high01, high23, 1, 2),
    ]  # fmt: skip


def _transposed_parts(w: Writer, vectors: list[Value]) -> list[Value]:
    """As many vectors as they have parts of four lanes: part b of vector g becomes part g of vector b."""
    lanes, count = vectors[0].lanes, len(vectors)
    span = 1
    while span < count:
        after = list(vectors)
        for g in range(count):
            if g & span:
                continue
            a, b = vectors[g], vectors[g + span]
            even, odd = [], []
            for part in range(count):
                lane = 4 * (part & ~span)
                origin = lanes if part & span else 0
                even += [origin + lane + k for k in range(4)]
                odd += [origin + lane + 4 * span + k for k in range(4)]
            after[g], after[g + span] = w.shuffle(even, a, b), w.shuffle(odd, a, b)
        vectors = after
        span *= 2
    return vectors
