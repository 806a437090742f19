"""Listings and renderings."""

import contextlib
import functools
import importlib
import inspect
import math
import random
from types import CodeType, FunctionType

import pytest
from random_functions import Writer, compiled, outcome
from rendering_machine import Ambiguous, Machine

from framesmith_bytecode import (
    NULL_FIRST,
    Bytecode,
    BytecodeError,
    CallShape,
    Codegen,
    Instr,
    Label,
    Region,
    decode,
    encode,
    format_bytecode,
    format_python,
)


def sample(n):
    total = 0
    for i in range(n):
        if i % 2:
            total += i
    return max(total, math.sqrt(n), key=abs)


def test_listing():
    text = format_bytecode(decode(sample.__code__))
    assert text.startswith("def sample(n)\n  varnames: n, total, i\n")
    assert "L1:" in text
    assert "FOR_ITER" in text
    assert "RETURN_VALUE" in text
    assert str(sample.__code__.co_firstlineno + 2) in text


def test_listing_of_regions():
    def guarded():
        try:
            sample(1)
        finally:
            sample(2)

    text = format_bytecode(decode(guarded.__code__))
    assert "-> L" in text
    assert "depth 0" in text


def test_listing_of_a_wrong_function():
    text = format_bytecode(Bytecode("f", [Instr("POP_TOP"), Instr("JUMP", Label())]))
    assert "(missing label)" in text
    assert "POP_TOP" in text


def test_listing_of_what_is_no_instruction():
    text = format_bytecode(Bytecode("f", ["NOP", Instr("NOP")]))
    assert "    0   -       (neither an Instr nor a Label: 'NOP')" in text
    assert "NOP" in text.splitlines()[-1]


@pytest.mark.parametrize("write", [format_bytecode, format_python])
def test_only_bytecode_is_written(write):
    with pytest.raises(TypeError, match=f"{write.__name__} takes a Bytecode, not code; decode\\(code\\) makes one"):
        write(sample.__code__)
    with pytest.raises(TypeError, match=r"not function; a function's is decode\(f.__code__\)"):
        write(sample)


def test_rendering():
    text = format_python(decode(sample.__code__))
    assert text.splitlines()[:5] == [
        "def sample(n):",
        "    total = 0",
        "    $0 = iter(range(n))",
        "  L1:",
        text.splitlines()[4],
    ]
    assert text.splitlines()[4].startswith("    i = next($0), or goto L")
    assert "    total += i" in text
    assert text.endswith("return max(total, math.sqrt(n), key=abs)")


def test_rendering_of_generated_code():
    codegen = Codegen(["x", "out"])
    codegen.push_callable(lambda: codegen.load_global("graph"))
    codegen.load("x")
    codegen.call(1)
    codegen.unpack(2)
    codegen.store("a")
    codegen.load("out")
    codegen.store_attr("value")
    codegen.load("a")
    codegen.return_value()
    text = format_python(codegen.bytecode("residual"))
    assert "def residual(x, out):" in text
    assert "graph(x)" in text
    assert "out.value = " in text
    assert text.endswith("return a")


def test_every_construct_renders():
    def many(a, *b):
        with a as c, c.d() as e:
            x = [e for i in b if i] or {1: 2, **a}
        try:
            del x[0], a.b
        except (ValueError, TypeError) as error:
            raise KeyError(f"{error!r:>4}") from error
        match a:
            case [1, *_]:
                return lambda: (a, x)
        while a is not b:
            a, *b = b[1:2]
        return a if a < 3 <= 4 else -a

    text = format_python(decode(many.__code__))
    assert text.startswith("def test_every_construct_renders.<locals>.many(a, *b):")
    assert "    except: $0 = exception; goto L" in text
    assert "raise KeyError(f'{error!r:>4}') from error" in text
    assert "x = $" in text


def first_nested(source, count=1):
    """The code object `count` levels inside."""
    code = compile(source, "sample.py", "exec")
    for _ in range(count):
        code = next(const for const in code.co_consts if hasattr(const, "co_code"))
    return code


@pytest.mark.parametrize(
    ("statement", "line"),
    [
        ("x += y", "x += y"),
        ("x.a.b -= y", "$0.b -= y"),
        ("x[i] |= y", "x[i] |= y"),
        ("return iter(x) + (y if i else 1)", "$0 = iter(x)"),
        ("return -(x ** y), (-x) ** y, x ** -y", "return (-x ** y, (-x) ** y, x ** -y)"),
        ("return (x - y) - i, x - (y - i), not (x < y)", "return (x - y - i, x - (y - i), not x < y)"),
        ("return (x < y) == i, x in y, not x in y", "return ((x < y) == i, x in y, x not in y)"),
        ("return (1).real, [*x, 1], {**x, 'a': y}, {*x, y}", "return ((1).real, [*x, 1], {**x, **{'a': y}}, {*x, y})"),
        ("return x.m(y, *i, k=1, **y)", "return x.m(y, *i, **{'k': 1, **y})"),
        ("return f'{x!r:>{y}} {{{i}}}'", "return f'{x!r:>{y}} {{{i}}}'"),
        ("(x, *y), i = i", "x, *y = $1"),
        ("x, *y = i", "x, *y = i"),
        ("del x[y], x.i", "del x[y]"),
        ("if x is not y: i", "if x is y: goto L1"),
        ("from .a import b as x", "x = import_from($0, 'b')"),
    ],
)
def test_rendering_of_statements(statement, line):
    text = format_python(decode(first_nested(f"def f(x, y, i):\n    {statement}\n")))
    assert f"    {line}\n" in text + "\n", text


def test_parts_of_functions_have_their_own_names():
    code = first_nested("def f(x):\n    def inner(p: int, q=3, *, r=4): return x\n    return inner\n")
    text = format_python(decode(code))
    assert "defaults=(3,), kwdefaults={'r': 4}, annot" in text
    assert "annotations=('p', int), " in text or ".__annotate__, line 2>), " in text
    assert "closure=(cell(x),))" in text


def test_the_whole_signature_is_shown():
    for head in ("a, /, b, *, c", "a, /, *b, c, **d", "*, c", "a, **d", ""):
        bytecode = decode(first_nested(f"async def f({head}): pass"))
        assert format_python(bytecode).startswith(f"async def f({head}):")
        assert format_bytecode(bytecode).startswith(f"async def f({head})\n")
    assert format_python(decode(compile("x = 1", "m.py", "exec"))) == "body <module>:\n    x = 1\n    return None"


def test_constants_are_short_and_stable():
    class Odd:
        def __repr__(self):
            raise RuntimeError

    long, names = "a" * 1000, frozenset({"x", "y", "z"})
    items = [Instr("LOAD_CONST", value) for value in (Odd(), long, names, object(), "two\nlines", float("nan"))]
    bytecode = Bytecode("f", [*items, Instr("BUILD_TUPLE", 6), Instr("RETURN_VALUE")])
    text = format_python(bytecode)
    assert "<test_constants_are_short_and_stable.<locals>.Odd whose repr raises RuntimeError>" in text
    assert "<str of 1000: 'aaaa" in text
    assert "frozenset({'x', 'y', 'z'}), <object object>, 'two\\nlines', float('nan'))" in text
    assert "repr raises RuntimeError" in format_bytecode(bytecode)


def test_a_load_that_may_raise_is_in_its_region():
    start, end, handler = Label(), Label(), Label()
    items = [start, Instr("LOAD_FAST", "a"), end, Instr("RETURN_VALUE"), handler, Instr("PUSH_EXC_INFO"),
             Instr("POP_TOP"), Instr("POP_EXCEPT"), Instr("LOAD_CONST", 1), Instr("RETURN_VALUE")]  # fmt: skip
    lines = rendered(*items, varnames=["a"], regions=[Region(start, end, handler)])
    assert lines[:4] == ["try:", "$0 = a", "except: $0 = exception; goto L3", "return $0"]
    lines = rendered(*items, varnames=["a"], argcount=1, regions=[Region(start, end, handler)])
    assert lines[0] == "return a"


def test_globals_do_not_read_like_locals():
    lines = rendered(Instr("LOAD_GLOBAL", "a"), Instr("STORE_FAST", "a"), Instr("LOAD_FAST", "a"),
                     Instr("RETURN_VALUE"), varnames=["a"])  # fmt: skip
    assert lines == ["a = load_global('a')", "return a"]
    lines = rendered(Instr("LOAD_GLOBAL", "a"), Instr("STORE_GLOBAL", "a"), Instr("LOAD_FAST", "a"),
                     Instr("RETURN_VALUE"), varnames=["a"], argcount=1)  # fmt: skip
    assert lines == ["globals()['a'] = load_global('a')", "return a"]


def test_instructions_without_a_path_are_counted():
    lines = rendered(Instr("LOAD_CONST", 1), Instr("RETURN_VALUE"), Instr("LOAD_CONST", 2), Instr("RETURN_VALUE"))
    assert lines == ["return 1", "# not shown: 2 instructions that no path leads to"]


def test_methods_take_two_slots_where_paths_differ():
    """A call's two slots hold a method and its object on one path, and a callable and NULL on the other."""
    method, call = Label(), Label()
    plain = [Instr("PUSH_NULL"), Instr("LOAD_FAST", "f")]
    receiver = [Instr("LOAD_FAST", "f"), Instr("LOAD_FAST", "x")]
    items = [
        Instr("LOAD_FAST", "x"), Instr("POP_JUMP_IF_TRUE", method), *(plain if NULL_FIRST else plain[::-1]),
        Instr("JUMP", call), method, *receiver, call, Instr("CALL", CallShape(0)), Instr("RETURN_VALUE"),
    ]  # fmt: skip
    lines = rendered(*items, varnames=["f", "x"], argcount=2)
    assert lines[-1] == "return call($0, $1)"
    assert f"${0 if NULL_FIRST else 1} = NULL" in lines
    function = FunctionType(encode(Bytecode("f", items, varnames=["f", "x"], argcount=2)), {})
    assert function(str, 5) == "5"
    assert function(list, 0) == []


def without_details(runs):
    """Outcomes without details that renderings lack: messages of exceptions, times of deaths."""
    return [
        (result[:2] if result[0] == "raised" else result, [effect for effect in effects if effect[0] != "died"], box)
        for result, effects, box in runs
    ]


def test_renderings_have_the_effects_of_functions(long_run):
    """Random functions and their renderings, run line by line, have the same effects in order."""
    compared = 0
    for seed in range(2_000 if long_run else 60):
        function = compiled(Writer(random.Random(seed)).function())
        bytecode = decode(function.__code__)
        try:
            Machine(bytecode, function.__globals__)
        except Ambiguous:
            continue

        def as_rendered(a, b=2, *rest, bytecode=bytecode, scope=function.__globals__):
            return Machine(bytecode, scope).run(a, b, None, rest)

        machine = FunctionType(as_rendered.__code__, {**globals(), **function.__globals__}, "f", (2,))
        machine.__kwdefaults__ = {"bytecode": bytecode, "scope": machine.__globals__}
        assert without_details(outcome(machine)) == without_details(outcome(function)), format_python(bytecode)
        compared += 1
    print(f"{compared:,} renderings run line by line")
    assert compared > 20


def test_every_function_of_some_modules_renders():
    count = 0
    for name in ("contextlib", "functools", "dataclasses", "asyncio.tasks", "textwrap", "inspect"):
        module = importlib.import_module(name)
        codes = [compile(inspect.getsource(module), f"{name}.py", "exec")]
        for code in codes:
            codes += [const for const in code.co_consts if isinstance(const, CodeType)]
            bytecode = decode(code)
            assert format_python(bytecode) == format_python(decode(code))
            assert len(format_bytecode(bytecode).splitlines()) > 1
            count += 1
    assert count > 450


def test_whatever_is_sound_renders(long_run):
    """Functions with a few instructions left out, doubled and exchanged: a rendering of each that is still sound."""
    chance = random.Random(0)
    codes = [compile(inspect.getsource(module), "sample.py", "exec") for module in (contextlib, functools)]
    for code in codes:
        codes += [const for const in code.co_consts if isinstance(const, CodeType) and len(const.co_code) < 600]
    sound = 0
    for _ in range(20_000 if long_run else 300):
        bytecode = decode(chance.choice(codes[2:]))
        items = bytecode.instructions
        for _ in range(chance.randint(1, 2)):
            here, there = chance.randrange(len(items)), chance.randrange(len(items))
            if chance.random() < 0.5:
                items[here], items[there] = items[there], items[here]
            elif isinstance(items[there], Instr):
                items.insert(here, items[there])
        assert format_bytecode(bytecode)
        with contextlib.suppress(BytecodeError):
            assert format_python(bytecode)
            sound += 1
    assert sound > 40


def rendered(*items, **header):
    """The lines of a function that is made of these instructions, without its first line."""
    return [line.strip() for line in format_python(Bytecode("f", list(items), **header)).splitlines()[1:]]


def test_rendering_keeps_values_of_variables_that_change():
    lines = rendered(
        Instr("LOAD_FAST", "a"), Instr("LOAD_CONST", 1), Instr("STORE_FAST", "a"), Instr("RETURN_VALUE"),
        varnames=["a"],
    )  # fmt: skip
    assert lines == ["$0 = a", "a = 1", "return $0"]
    lines = rendered(Instr("LOAD_FAST", "a"), Instr("DELETE_FAST", "a"), Instr("RETURN_VALUE"), varnames=["a"])
    assert lines == ["$0 = a", "del a", "return $0"]


def test_rendering_of_exchanged_slots():
    calls = [
        item
        for name in "fg"
        for item in (Instr("LOAD_GLOBAL", name), Instr("LOAD_CONST", None), Instr("BINARY_OP", "+"))
    ]
    lines = rendered(*calls, Instr("SWAP", 2), Instr("STORE_FAST", "a"), Instr("RETURN_VALUE"), varnames=["a"])
    assert lines == ["$0 = f + None", "$1 = g + None", "a = $0", "return $1"]


def test_rendering_names_what_crosses_a_label():
    label = Label()
    items = [Instr("LOAD_FAST", "a"), Instr("COPY", 1), Instr("POP_JUMP_IF_TRUE", label), Instr("POP_TOP"),
             Instr("LOAD_CONST", 2), label, Instr("RETURN_VALUE")]  # fmt: skip
    lines = rendered(*items, varnames=["a"], argcount=1)
    assert lines == ["$0 = a", "if a: goto L1", "$0 = 2", "L1:", "return $0"]
