"""Malformed functions are refused with a message that names the instruction."""

import pytest

from framesmith_bytecode import (
    Bytecode,
    BytecodeError,
    CallShape,
    Instr,
    Label,
    Region,
    decode,
    encode,
    problems,
    stack_depths,
    unreachable_handlers,
    verify,
)

A, B, C = Label("A"), Label("B"), Label("C")
NONE, RETURN = Instr("LOAD_CONST", None), Instr("RETURN_VALUE")


def function(*items, regions=(), **header):
    return Bytecode("f", list(items), list(regions), **header)


CASES = {
    "underflow": (
        function(Instr("POP_TOP"), NONE, RETURN),
        r"f: item 0 \(POP_TOP\): needs 1 values on the stack, there are 0",
    ),
    "peek too deep": (
        function(NONE, Instr("SWAP", 3), RETURN),
        r"f: item 1 \(SWAP 3\): needs 3 values on the stack, there are 1",
    ),
    "joins disagree": (
        function(NONE, Instr("POP_JUMP_IF_TRUE", A), NONE, A, NONE, RETURN),
        r"label at item 3: reached with stack depths? (0|1) and.* (1|0)",
    ),
    "unplaced label": (function(Instr("JUMP", A)), r"f: item 0 \(JUMP\): its label is not in the instructions"),
    "label placed twice": (function(A, NONE, A, RETURN), r"the same label is placed at items 0 and 2"),
    "runs off the end": (function(NONE), r"f: the end of the instructions: control runs off the end"),
    "empty": (function(), r"f: the end of the instructions: control runs off the end"),
    "unknown local": (
        function(Instr("LOAD_FAST", "xx"), RETURN, varnames=["x"]),
        r"f: item 0 \(LOAD_FAST 'xx'\): 'xx' is no variable of this function; did you mean 'x'\?",
    ),
    "plain local as a cell": (
        function(Instr("LOAD_DEREF", "x"), RETURN, varnames=["x"], cellvars=["y"]),
        r"'x' is a plain local, not a cell; known are \['y'\]",
    ),
    "cell as a plain local": (
        function(NONE, Instr("STORE_FAST", "x"), NONE, RETURN, cellvars=["x"]),
        r"item 1 \(STORE_FAST 'x'\): would put a plain value where the cell belongs; use STORE_DEREF",
    ),
    "past the cell": (
        function(Instr("LOAD_FAST", "x"), RETURN, cellvars=["x"]),
        r"item 0 \(LOAD_FAST 'x'\): reaches past the cell; use the _DEREF operation",
    ),
    "null as a value": (
        function(Instr("PUSH_NULL"), RETURN),
        r"f: item 1 \(RETURN_VALUE\): takes a NULL slot for a value",
    ),
    "null as an argument": (
        function(Instr("PUSH_NULL"), NONE, Instr("PUSH_NULL"), Instr("CALL", CallShape(1)), RETURN),
        r"item 3 \(CALL .*\): takes a NULL slot for a (value|callable)",
    ),
    "call of nothing": (
        function(Instr("PUSH_NULL"), Instr("PUSH_NULL"), Instr("CALL", CallShape(0)), RETURN),
        r"item 2 \(CALL .*\): both slots under the arguments are NULL",
    ),
    "missing region label": (
        function(A, NONE, RETURN, regions=[Region(A, B, A)]),
        r"the end label of region 0 is not in the instructions",
    ),
    "backward region": (
        function(A, NONE, B, RETURN, C, RETURN, regions=[Region(B, A, C)]),
        r"region 0 ends \(item 0\) before it starts",
    ),
    "handler wants more": (
        function(A, Instr("NOP"), B, NONE, RETURN, C, Instr("RERAISE", 0), regions=[Region(A, B, C, depth=1)]),
        r"item 1 \(NOP\): stack depth 0 inside a region whose handler wants 1",
    ),
    "yield in a plain function": (
        function(NONE, Instr("YIELD_VALUE"), RETURN),
        r"item 1 \(YIELD_VALUE\): yields in a function that is no generator",
    ),
    "generator without its start": (function(NONE, RETURN, flags=0x23), r"say generator or coroutine, the instr"),
    "send without its end": (
        function(Instr("RETURN_GENERATOR"), Instr("POP_TOP"), NONE, NONE, Instr("SEND", A), Instr("YIELD_VALUE"),
                 Instr("POP_TOP"), Instr("POP_TOP"), NONE, RETURN, A, Instr("POP_TOP"), RETURN, flags=0x23),
        r"item 4 \(SEND\): its label must stand before an END_SEND",
    ),
    "parameters without names": (
        function(NONE, RETURN, argcount=2, varnames=["a"]),
        r"2 positional \(0 positional-only\) and 0 keyword-only parameters",
    ),
    "a name twice": (function(NONE, RETURN, varnames=["a", "a"]), r"varnames names a variable twice: \['a', 'a'\]"),
    "free and local": (
        function(NONE, RETURN, varnames=["a"], freevars=["a"]),
        r"free variable 'a' is also a local or a cell; call it 'a \(free\)'",
    ),
    "not an item": (function(NONE, "RETURN_VALUE", RETURN), r"item 1 is a str, neither an Instr nor a Label"),
}  # fmt: skip
NOT_SEEN_BY_ENCODE = {"null as a value", "null as an argument", "call of nothing", "backward region", "past the cell",
                      "cell as a plain local", "yield in a plain function", "generator without its start",
                      "send without its end", "not an item"}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_refused(name):
    bytecode, message = CASES[name]
    with pytest.raises(BytecodeError, match=message):
        verify(bytecode)
    assert problems(bytecode)


@pytest.mark.parametrize("name", sorted(set(CASES) - NOT_SEEN_BY_ENCODE))
def test_refused_by_encode_too(name):
    with pytest.raises(BytecodeError):
        encode(CASES[name][0])


def test_forged_instruction_is_refused():
    forged = tuple.__new__(Instr, ("LOAD_FASTEST", "x", None))
    with pytest.raises(BytecodeError, match=r"item 0 .*unknown operation 'LOAD_FASTEST'; did you mean 'LOAD_FAST'"):
        verify(function(forged, RETURN))


def test_sound_function_has_no_problems():
    def sound(a, *b, c=1, **d):
        with a as e:
            return [lambda: (a, i) for i in b] or (yield e)

    verify(decode(sound.__code__))


def test_depths():
    bytecode = function(A, NONE, Instr("POP_JUMP_IF_NONE", A), NONE, RETURN, NONE)
    depths = stack_depths(bytecode)
    assert depths.before == [0, 0, 1, 0, 1, None]
    assert depths.deepest == 1


def test_depth_of_regions_is_found():
    bytecode = function(NONE, A, Instr("NOP"), B, RETURN, C, Instr("RERAISE", 0), regions=[Region(A, B, C, None, True)])
    depths = stack_depths(bytecode)
    assert depths.regions == {0: 1}
    assert depths.before[6] == 3


def test_unreachable_handlers_are_named():
    bytecode = function(NONE, RETURN, A, NONE, RETURN, B, C, Instr("RERAISE", 0), regions=[Region(A, B, C, 0)])
    assert unreachable_handlers(bytecode) == ["f: region 0: no path enters it, its handler (item 6) is dead"]
    verify(bytecode)


def test_inner_region_is_in_force():
    inner, outer = Label(), Label()
    start, middle, stop, end = Label(), Label(), Label(), Label()
    bytecode = function(
        start, NONE, middle, Instr("POP_TOP"), stop, NONE, end, RETURN,
        inner, Instr("RERAISE", 0), outer, Instr("RERAISE", 0),
        regions=[Region(start, end, outer, 0), Region(middle, stop, inner, 0)],
    )  # fmt: skip
    again = decode(encode(bytecode))
    assert len(again.regions) == 3
    assert again.regions[0].handler is again.regions[2].handler
    assert again.regions[1].handler is not again.regions[0].handler
