"""Scores to probabilities: powers of e, their sums, and the largest score so far."""

from __future__ import annotations

import math

from framesmith_backends.native_ops.attention.shape import LOWEST, Shape
from framesmith_backends.render.llvm.builder import Value, constant
from framesmith_backends.render.llvm.math import elementary as functions
from framesmith_backends.render.llvm.writer import ZERO, Writer, parameters, signature


def larger(w: Writer, a: Value, b: Value) -> Value:
    """The larger; where one is NaN, either: a row with a NaN is NaN by its sum."""
    return w.select(w.compare("ogt", a, b), a, b)


def finite(w: Writer, greatest: Value) -> Value:
    """The score that is subtracted from others: zero where all are -inf, so that their powers are zero."""
    return w.select(w.compare("oeq", greatest, LOWEST), w.number(0.0, greatest), greatest)


def logarithm(w: Writer, greatest: Value, total: Value) -> Value:
    """The logarithm of a sum of powers whose largest exponent is given; infinite where that is."""
    found = w.add(finite(w, greatest), functions.log(w, total))
    return w.select(w.compare("oeq", greatest, math.inf), greatest, found)


_SOFTMAX = ("ptr scores", "i64 keys", "ptr greatest", "ptr total", "ptr factor", "i64 ahead")


def softmax(w: Writer, shape: Shape, vectors: int) -> str:
    """Powers of e in place of a block's scores, and the state that follows.

    The query of lane k sees the keys up to `ahead` + k of this block.
    """
    p, lanes = parameters(*_SOFTMAX), shape.lanes
    width = vectors * lanes
    beyond = w.add(p["ahead"], 1)
    beyond = w.select(w.compare("slt", beyond, 0), ZERO, beyond)
    steps = [
        Value("<" + ", ".join(f"i64 {v * lanes + k}" for k in range(lanes)) + ">", "i64", lanes) for v in range(vectors)
    ]
    with w.loop(beyond, p["keys"]) as k:
        hidden = w.splat(w.sub(k, p["ahead"]), lanes)
        row = w.at(p["scores"], w.mul(k, width))
        for v in range(vectors):
            place = w.at(row, v * lanes)
            one = w.load(place, "float", lanes)
            w.store(w.select(w.compare("slt", steps[v], hidden), w.number(LOWEST, one), one), place)
    names = [[w.at(p[name], v * lanes) for v in range(vectors)] for name in ("greatest", "total", "factor")]
    before = [w.load(place, "float", lanes) for place in names[0]]
    cells = [w.cell(one) for one in before]
    with w.loop(ZERO, p["keys"]) as k:
        row = w.at(p["scores"], w.mul(k, width))
        for v, cell in enumerate(cells):
            one = w.load(w.at(row, v * lanes), "float", lanes)
            w.store(larger(w, w.read(cell, "float", lanes), one), cell, 0)
    greatest = [w.read(cell, "float", lanes) for cell in cells]
    base = [finite(w, one) for one in greatest]
    totals = [w.cell(constant(0.0, "float", lanes)) for _ in range(vectors)]
    with w.loop(ZERO, p["keys"]) as k:
        row = w.at(p["scores"], w.mul(k, width))
        for v, cell in enumerate(totals):
            place = w.at(row, v * lanes)
            power = functions.weight(w, w.sub(w.load(place, "float", lanes), base[v]))
            w.store(power, place)
            w.store(w.add(w.read(cell, "float", lanes), power), cell, 0)
    for v in range(vectors):
        factor = functions.weight(w, w.sub(before[v], base[v]))
        total = w.fma(w.load(names[1][v], "float", lanes), factor, w.read(totals[v], "float", lanes))
        for value, place in zip((greatest[v], total, factor), (names[0][v], names[1][v], names[2][v]), strict=True):
            w.store(value, place)
    return w.function(f"define internal void @fs.softmax.{vectors}({signature(_SOFTMAX)})")
