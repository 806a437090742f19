"""Branches for the few lanes that straight-line code does not serve: calls of the C library, and out-of-line code."""

from __future__ import annotations

from collections.abc import Callable

from framesmith_backends.render.llvm.builder import Builder, Value, element_bytes


def by_library(b: Builder, where: Value, function: str, args: tuple[Value, ...], result: Value) -> Value:
    """`result`, except that the lanes of `where` are what the library's function gives, one by one."""
    kind = result.kind
    slow = f"@fs.{function}.{where.lanes}"
    b.declare(f"declare {kind} @{function}({', '.join(kind for _ in args)})")
    b.declare(_slow_lanes(slow, function, kind, len(args), where.lanes))
    passed = ", ".join(value.typed for value in (where, *args, result))
    anywhere = where if where.lanes == 1 else _any_bit(b, where)  # the call is given the bits, too
    return _branched(b, anywhere, result, lambda: b.emit(f"call {result.type} {slow}({passed})", kind, result.lanes))


def instead(b: Builder, where: Value, result: Value, other: Callable[[], Value]) -> Value:
    """`result`, or where any lane of `where` is set, the other one: the code around is left only then."""
    return _branched(b, _any_lane(b, where, result.kind), result, other)


def _branched(b: Builder, anywhere: Value, result: Value, other: Callable[[], Value]) -> Value:
    n = b.name()[1:]
    b.line(f"br label %{n}.here")
    b.line(f"{n}.here:")
    b.line(f"br i1 {anywhere.text}, label %{n}.slow, label %{n}.join, !prof !0")
    b.line(f"{n}.slow:")
    found = other()
    b.line(f"br label %{n}.left")
    b.line(f"{n}.left:")  # what is computed may have blocks of its own
    b.line(f"br label %{n}.join")
    b.line(f"{n}.join:")
    return b.emit(
        f"phi {result.type} [ {result.text}, %{n}.here ], [ {found.text}, %{n}.left ]", result.kind, result.lanes
    )


def _any_lane(b: Builder, where: Value, kind: str) -> Value:
    """Whether a condition of values of that kind holds in any lane.

    Before AVX-512 a condition is as wide as what is compared: LLVM would shuffle those of several registers together.
    """
    if where.lanes == 1:
        return where
    most = 32 // element_bytes(kind)
    if not b.avx512 and where.lanes > most:
        signs = b.convert("sext", where, f"i{8 * element_bytes(kind)}")
        while signs.lanes > most:
            half = signs.lanes // 2
            signs = b.binary("or", b.pick(signs, range(half)), b.pick(signs, range(half, signs.lanes)))
        where = b.compare("slt", signs, 0)
    return _any_bit(b, where)


def _any_bit(b: Builder, where: Value) -> Value:
    packed = b.emit(f"bitcast {where.typed} to i{where.lanes}", f"i{where.lanes}")
    return b.compare("ne", packed, 0)


def out_of_line(b: Builder, name: str, body: Callable[..., Value], *args: Value) -> Value:
    """The body's value for arguments, the last of which has all lanes, by a call: what seldom runs is there once."""
    lanes = args[-1].lanes
    inner = Builder(vectors=b.vectors, declared=b.declared)
    given = [Value(f"%x{k}", value.kind, value.lanes) for k, value in enumerate(args)]
    found = body(inner, *given)
    lines = "\n".join(f"  {line}" for line in inner.out)
    parameters = ", ".join(value.typed for value in given)
    called = f"@fs.{name}.{lanes}"
    b.declare(f"define internal {found.type} {called}({parameters}) noinline {{\n{lines}\n  ret {found.typed}\n}}")
    return b.emit(f"call {found.type} {called}({', '.join(value.typed for value in args)})", found.kind, found.lanes)


def _slow_lanes(name: str, function: str, one: str, count: int, lanes: int) -> str:
    """A function of lanes, `count` arguments and results that replaces the results in these lanes."""
    if lanes == 1:
        parameters = ", ".join(f"{one} %x{k}" for k in range(count))
        return (
            f"define internal {one} {name}(i1 %where, {parameters}, {one} %y) noinline {{\n"
            f"  %r = call {one} @{function}({parameters})\n  ret {one} %r\n}}"
        )
    kind = f"<{lanes} x {one}>"
    parameters = ", ".join(f"{kind} %x{k}" for k in range(count))
    elements = "\n".join(f"  %e{k} = extractelement {kind} %x{k}, i64 %k" for k in range(count))
    passed = ", ".join(f"{one} %e{k}" for k in range(count))
    return f"""define internal {kind} {name}(<{lanes} x i1> %where, {parameters}, {kind} %y) noinline {{
entry:
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %next, %latch ]
  %v = phi {kind} [ %y, %entry ], [ %w, %latch ]
  %c = extractelement <{lanes} x i1> %where, i64 %k
  br i1 %c, label %far, label %latch
far:
{elements}
  %r = call {one} @{function}({passed})
  %i = insertelement {kind} %v, {one} %r, i64 %k
  br label %latch
latch:
  %w = phi {kind} [ %v, %loop ], [ %i, %far ]
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, {lanes}
  br i1 %more, label %loop, label %done
done:
  ret {kind} %w
}}"""
