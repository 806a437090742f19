"""Every kind of code survives decode and encode: source constructs, and the standard library."""

import importlib.util
import sys
import sysconfig
from pathlib import Path

import pytest

from framesmith_bytecode import Bytecode, Instr, Label, decode, encode
from framesmith_bytecode.corpus.compare import difference
from framesmith_bytecode.corpus.round_trip import round_trip_problem
from framesmith_bytecode.corpus.run import check_sources
from framesmith_bytecode.nested import map_code, walk_code

CONSTRUCTS = {
    "calls": "f(); f(1, *a, k=2, **d); x.m(1, k=2); f(*a); f(**d); f(a, b=1)(c)",
    "chained": "a < b < c; not a; a and b or c; x = a if b else c; a is not b; a not in b",
    "targets": "a, *b, c = d; [a, (b, c)] = d; a.b[c:d] = e; del a[0], a.b; a[1:2:3]; a[1:2] += b",
    "loops": "for i in x:\n  if i: continue\n  elif y: break\nelse: z()\nwhile a:\n  b()\nelse: c()",
    "try": "try:\n  a()\nexcept (A, B) as e:\n  b()\nexcept C:\n  raise\nelse:\n  c()\nfinally:\n  d()",
    "groups": "try:\n  a()\nexcept* A as e:\n  b()\nexcept* B:\n  c()",
    "with": "with a as b, c, d() as (e, f):\n  g()",
    "match": "match a:\n  case [1, x, *_]: b()\n  case {'k': v, **r}: c()\n  case P(1, y=z) | Q(z): d()\n"
    "  case 'a' | None | -1.5 if z: e()\n  case (x, y) as w: f()",
    "fstrings": "f'{a}{b!r:>{c}}{d:x}{e!s}{f!a:{g}{h}}'",
    "functions": "def f(a, /, b: int = 1, *c, d=2, **e) -> str:\n  'doc'\n"
    "  def g(): nonlocal a; a = b; return c\n  return g",
    "lambda": "lambda a, *b, c=1, **d: (a, b, c, d)",
    "classes": "class A(B, metaclass=C):\n  x: int = 1\n"
    "  def f(self): return super().f(), __class__\n  y = [x for _ in x]",
    "comprehensions": "[a for a in b if c]; {a: b for a, b in c}; "
    "{a for a in b}; (a for a in b); [[y for y in x] for x in z]",
    "cells": "def f(a):\n  x = [lambda: a + i for i in range(3)]\n  del a\n  return x",
    "generators": "def f():\n  x = yield 1\n  yield from g()\n  return [(yield)]\ndef h():\n  y = a and (yield from b)",
    "coroutines": "async def f():\n  async with a as b:\n    async for c in d:\n"
    "      await e\n  return [x async for x in y if await z]"
    "\nasync def g():\n  yield 1\n  try:\n    await h\n  finally:\n    await i",
    "imports": "import a.b.c as d, e\nfrom . import f\nfrom g import h as i, j",
    "star": "from os.path import *",
    "globals": "def f():\n  global x\n  x = 1\n  del x\n  return y",
    "walrus": "if (n := f()) and [m := k for k in n]: g(n, m)",
    "constants": "x = 0, 0.0, -0.0, False, 1, True, 1.0, (1, (1.0, True)), {1, 2} , 'a', b'a', ..., None, 1j",
    "assert": "assert a, b",
    "annotations": "x: int = 1\ny: 'str'\nclass A:\n  z: int",
    "slices": "a[b:c] = d; a[b:c]; a[b:c:d]; del a[b:c]",
    "operators": "a + b - c * d / e // f % g ** h @ i & j | k ^ l << m >> n; +a; -b; ~c; a @= b; a **= c; a >>= 1",
}
NEWER = {
    "type parameters": (
        "def f[T, *U, **V](a: T, *b: *U) -> V: pass\nclass A[T: int, S: (int, str)]: x: T\ntype X[T] = list[T]",
        12,
    ),
    "type defaults": ("class A[T = int]: pass", 13),
}


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_constructs(name):
    for code in walk_code(compile(CONSTRUCTS[name], name, "exec")):
        assert round_trip_problem(code) is None


@pytest.mark.parametrize("name", NEWER)
def test_newer_constructs(name):
    source, minor = NEWER[name]
    if sys.version_info < (3, minor):
        with pytest.raises(SyntaxError):
            compile(source, name, "exec")
        return
    for code in walk_code(compile(source, name, "exec")):
        assert round_trip_problem(code) is None


def test_interactive_and_expression_code():
    for mode in ("single", "eval"):
        assert round_trip_problem(compile("a + b(c)", "x", mode)) is None


@pytest.mark.parametrize("count", [50, 300, 9000])
def test_extended_arguments_and_long_jumps(count):
    lines = "\n".join(f"    x = y{i % 997} + {i}" for i in range(count))
    module = compile(f"def f(a):\n  for y in a:\n   if y:\n{lines}\n  return a\n", "long", "exec")
    assert all(round_trip_problem(code) is None for code in walk_code(module))


def test_standard_library_sample():
    root = Path(sysconfig.get_paths()["stdlib"])
    wanted = [
        "asyncio",
        "json",
        "email",
        "ast.py",
        "typing.py",
        "dataclasses.py",
        "contextlib.py",
        "test/test_patma.py",
        "test/test_grammar.py",
        "test/test_fstring.py",
        "test/test_exception_group.py",
        "test/test_listcomps.py",
        "test/test_coroutines.py",
        "test/test_type_params.py",
        "test/test_with.py",
        "test/test_generators.py",
    ]
    report = check_sources(root / name for name in wanted if (root / name).exists())
    print(report)
    assert report.failures == []
    assert report.codes > 1500


def test_docstring_slot_and_constants():
    def documented():
        "the text"
        return "other"

    def plain():
        return "first constant"

    for function in (documented, plain):
        code = encode(decode(function.__code__))
        assert code.co_consts == function.__code__.co_consts
        assert type(function)(code, {}).__doc__ == function.__doc__


def test_one_code_runs_the_same_after_map_code():
    spec = importlib.util.find_spec("colorsys")
    code = map_code(spec.loader.get_code("colorsys"))
    namespace = {"__name__": "colorsys_again"}
    exec(code, namespace)
    import colorsys

    assert namespace["rgb_to_hls"](0.2, 0.4, 0.4) == colorsys.rgb_to_hls(0.2, 0.4, 0.4)


def hot(n, box):
    total = 0
    for i in range(n):
        total += i if i < 5 else box.value
        if not total:
            continue
    return [total for _ in (1, 2)]


class Box:
    value = 2


def test_specialised_code_reads_like_fresh_code():
    fresh = decode(hot.__code__.replace())
    for _ in range(200):
        hot(20, Box())
    assert difference(fresh, decode(hot.__code__)) is None


def test_traced_code_reads_like_fresh_code():
    fresh = decode(hot.__code__.replace())
    seen = []
    sys.settrace(lambda frame, event, arg: seen.append(decode(frame.f_code)))
    try:
        hot(3, Box())
    finally:
        sys.settrace(None)
    readings = [reading for reading in seen if reading.name == "hot"]
    assert readings
    assert all(difference(fresh, reading) is None for reading in readings)


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="sys.monitoring is new in 3.12")
def test_monitored_code_reads_like_fresh_code():
    fresh = decode(hot.__code__.replace())
    monitoring = sys.monitoring
    tool = monitoring.PROFILER_ID
    monitoring.use_tool_id(tool, "test")
    events = monitoring.events
    wanted = events.LINE | events.INSTRUCTION | events.CALL | events.JUMP | events.PY_RETURN | events.PY_START
    try:
        for event in (events.LINE, events.INSTRUCTION, events.PY_START, events.JUMP):
            monitoring.register_callback(tool, event, lambda *_: None)
        monitoring.set_local_events(tool, hot.__code__, wanted & ~events.CALL | events.CALL)
        hot(3, Box())
        assert difference(fresh, decode(hot.__code__)) is None
    finally:
        monitoring.set_local_events(tool, hot.__code__, 0)
        monitoring.free_tool_id(tool)


def test_free_variable_of_the_same_name_as_a_local():
    module = compile("def f(x):\n class C:\n  y = [x for x in range(3)]\n  z = x\n return C", "x", "exec")
    for code in walk_code(module):
        assert round_trip_problem(code) is None
    namespace = {}
    exec(map_code(module), namespace)
    assert namespace["f"](7).z == 7


def test_decode_refuses_other_things():
    with pytest.raises(TypeError, match="decode takes a code object, not function"):
        decode(hot)


def test_difference_names_the_place():
    one, other = decode(hot.__code__), decode(hot.__code__)
    assert difference(one, other) is None
    index = next(i for i, item in enumerate(other.instructions) if isinstance(item, Instr) and item.op == "LOAD_CONST")
    other.instructions[index] = other.instructions[index].replace(arg=0.0)
    assert "LOAD_CONST 0> is not <LOAD_CONST 0.0>" in difference(one, other)
    other = decode(hot.__code__)
    other.name = "cold"
    assert difference(one, other).startswith("name:")


def test_positions_survive_edge_cases():
    label = Label()
    bytecode = Bytecode("f", [label])
    bytecode.instructions = [Instr("RESUME", 0), Instr("LOAD_CONST", None), Instr("RETURN_VALUE")]
    assert [tuple(p) for p in encode(bytecode).co_positions()][:1] == [(None, None, None, None)]


@pytest.mark.parametrize("first", ["LOAD_FAST", "LOAD_CLOSURE"])
def test_loads_of_cells_decode_equally_in_pairs_and_alone(first):
    loads = [Instr(first, "c"), Instr("POP_TOP"), Instr("LOAD_FAST", "x"), Instr("LOAD_FAST", "c")]
    items = [*loads, Instr("POP_TOP"), Instr("POP_TOP"), Instr("LOAD_CONST", None), Instr("RETURN_VALUE")]
    again = decode(encode(Bytecode("f", items, argcount=2, flags=3, varnames=["x", "c"], cellvars=["c"])))
    ops = [item.op for item in again.instructions if isinstance(item, Instr) and item.arg == "c"]
    closure_by_fast = sys.version_info >= (3, 13)
    assert ops == (["LOAD_CLOSURE", "LOAD_CLOSURE"] if closure_by_fast else [first, "LOAD_FAST"])
    assert difference(again, decode(encode(again))) is None
