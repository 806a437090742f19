"""Vectors in memory: whole ones, under masks, and of elements that are near each other."""

from __future__ import annotations

from framesmith_backends.render.llvm.builder import Value, constant, element_bytes
from framesmith_backends.render.llvm.loops.state import Rendering
from framesmith_backends.render.llvm.math.libm import out_of_line

#: Lanes that read one element of a vector under a mask: it is asked for with the masks of all of them.
MOST_READERS = 4


def address(r: Rendering, source: str, kind: str, position: Value) -> Value:
    return r.b.emit(f"getelementptr {kind}, ptr {r.pointers[source].text}, {position.typed}", "ptr", position.lanes)


def tile_load(r: Rendering, place: Value, kind: str, width: int | None = None) -> Value:
    """Elements side by side, as many as there are lanes, or `width`."""
    lanes = width or r.lanes
    vector = Value("", kind, lanes).type
    return r.b.emit(f"load {vector}, ptr {place.text}, align {element_bytes(kind)}", kind, lanes)


def through_memory(r: Rendering, value: Value) -> Value:
    """The vector, written and read again, as it is to be widened: AVX2 widens what it reads without shuffles.

    Halves of a register are first shuffled down, and then again while they are widened: a sum of squares of sixteen
    numbers in float64 takes 9.1 cycles of a Zen 4 so, and 7.3 by memory. LLVM does not see that nothing changes there.
    """
    place = r.room(value.type)
    r.b.line(f"store {value.typed}, ptr {place.text}, align 64")
    r.b.line(f'call void asm sideeffect "", "r,~{{memory}}"({place.typed})')
    return r.b.emit(f"load {value.type}, ptr {place.text}, align 64", value.kind, value.lanes)


def masked_tile_load(r: Rendering, place: Value, mask: Value, kind: str) -> Value:
    """Elements side by side where the mask, of all lanes or of each, says so; else zeros, and nothing is read.

    Before AVX-512 there are no masked reads of less than 32 bits, and LLVM's instead of them ask lane by lane. Most
    masks say one thing of all lanes, which is asked first.
    """
    if r.b.avx512 or element_bytes(kind) >= 4 or not mask.text.startswith("%"):
        return r.b.masked_load(place, r.b.splat(mask, r.lanes), kind)
    n, known = r.b.name()[1:], []
    r.b.out += [f"br label %{n}.ask", f"{n}.ask:"]
    if mask.lanes == 1:
        r.b.line(f"br i1 {mask.text}, label %{n}.all, label %{n}.none")
    else:
        packed = r.b.emit(f"bitcast {mask.typed} to i{mask.lanes}", f"i{mask.lanes}")
        every, some = r.b.compare("eq", packed, -1), r.b.compare("ne", packed, 0)
        r.b.out += [f"br i1 {every.text}, label %{n}.all, label %{n}.few", f"{n}.few:"]
        r.b.out += [f"br i1 {some.text}, label %{n}.some, label %{n}.none, !prof !0", f"{n}.some:"]
        part = out_of_line(r.b, f"masked.{kind}", lambda b, *given: b.masked_load(*given, kind), place, mask)
        r.b.out += [f"br label %{n}.met", f"{n}.met:", f"br label %{n}.done"]
        known.append(f"[ {part.text}, %{n}.met ]")
    r.b.line(f"{n}.none:")
    r.b.out += [f"br label %{n}.done", f"{n}.all:"]
    whole = tile_load(r, place, kind)
    r.b.out += [f"br label %{n}.done", f"{n}.done:"]
    known += [f"[ {whole.text}, %{n}.all ]", f"[ zeroinitializer, %{n}.none ]"]
    return r.b.emit(f"phi {whole.type} {', '.join(known)}", kind, r.lanes)


def spread_load(r: Rendering, source: str, first: Value, offsets: tuple[int, ...], kind: str) -> Value:
    """Elements at `offsets` from the first one, by loads of all that lies between them.

    The last load begins earlier than where the one before it ends: nothing behind the last element is read.
    """
    lowest = r.b.add(first, min(offsets)) if min(offsets) else first
    steps = [offset - min(offsets) for offset in offsets]
    span = max(steps) + 1
    if span == 1:
        return r.b.splat(tile_load(r, address(r, source, kind, lowest), kind, 1), r.lanes)
    width = min(r.lanes, 1 << (span.bit_length() - 1))
    starts = [min(begin, span - width) for begin in range(0, span, width)]
    parts = [tile_load(r, address(r, source, kind, r.b.add(lowest, start)), kind, width) for start in starts]
    found, taken = parts[0], {k: step for k, step in enumerate(steps) if step < width}
    for part, start in list(zip(parts, starts, strict=True))[1:] or [(parts[0], 0)]:
        new = {k: width + step - start for k, step in enumerate(steps) if k not in taken and step < start + width}
        found = r.b.shuffle([(taken | new).get(k) for k in range(r.lanes)], found, part)
        taken = {k: k for k in taken | new}
    return found


def is_read_at_once(offsets: tuple[int, ...]) -> bool:
    """Whether one load under a mask is faster than a gather: of one vector's elements, each for few of the lanes."""
    return max(offsets) - min(offsets) < len(offsets) and max(map(offsets.count, offsets)) <= MOST_READERS


def masked_spread_load(
    r: Rendering, source: str, first: Value, offsets: tuple[int, ...], kind: str, mask: Value
) -> Value:
    """Elements less than a block from the first one, by one load of what lanes under the mask read; else zeros."""
    lowest = r.b.add(first, min(offsets)) if min(offsets) else first
    steps = [offset - min(offsets) for offset in offsets]
    readers = [[k for k, step in enumerate(steps) if step == element] for element in range(r.lanes)]
    nobody = constant(False, "i1", r.lanes)
    needed: Value | None = None
    for turn in range(max(map(len, readers))):
        asked = r.b.shuffle([lanes[turn] if turn < len(lanes) else r.lanes for lanes in readers], mask, nobody)
        needed = asked if needed is None else r.b.binary("or", needed, asked)
    assert needed is not None
    raw = masked_tile_load(r, address(r, source, kind, lowest), needed, kind)
    return r.b.select(mask, r.b.shuffle(steps, raw, raw), Value("zeroinitializer", kind, r.lanes))
