"""Listings and renderings say what a reader needs."""

import math

from framesmith_bytecode import Bytecode, Codegen, Instr, Label, decode, format_bytecode, format_python


def sample(n):
    total = 0
    for i in range(n):
        if i % 2:
            total += i
    return max(total, math.sqrt(n), key=abs)


def test_listing():
    text = format_bytecode(decode(sample.__code__))
    assert text.startswith("sample(n)\n  varnames: n, total, i\n")
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


def test_rendering():
    assert format_python(decode(sample.__code__)).splitlines() == [
        "def sample(n):",
        "    total = 0",
        "    $0 = iter(range(n))",
        "  L1:",
        *format_python(decode(sample.__code__)).splitlines()[4:-1],
        "    return max(total, math.sqrt(n), key=abs)",
    ]
    assert "    total = total + i" in format_python(decode(sample.__code__))


def test_rendering_of_generated_code():
    codegen = Codegen(["x", "out"], globals={})
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
    assert "goto" in text
    assert "# protected: an exception goes to L" in text


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
    assert lines == ["$0 = f + None", "$1 = g + None", "$0, $1 = $1, $0", "a = $1", "return $0"]


def test_rendering_names_what_crosses_a_label():
    label = Label()
    lines = rendered(Instr("LOAD_FAST", "a"), label, Instr("RETURN_VALUE"), varnames=["a"])
    assert lines == ["$0 = a", "L1:", "return $0"]
