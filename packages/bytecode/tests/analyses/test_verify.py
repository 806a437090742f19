"""Malformed functions are refused with a message that names the instruction."""

from types import FunctionType

import pytest

from framesmith_bytecode import (
    ITERATOR_SLOTS,
    Bytecode,
    BytecodeError,
    CallShape,
    Instr,
    Label,
    Region,
    decode,
    encode,
    problems,
    verify,
)
from framesmith_bytecode.analyses.walk import stack_states

A, B, C = Label("A"), Label("B"), Label("C")
NONE, RETURN = Instr("LOAD_CONST", None), Instr("RETURN_VALUE")
# The second slot of an iterator, where there is one.
NO_INDEX = [Instr("PUSH_NULL")] * (ITERATOR_SLOTS - 1)
DROP_INDEX = [Instr("POP_TOP")] * (ITERATOR_SLOTS - 1)


def function(*items, regions=(), **header):
    return Bytecode("f", list(items), list(regions), **header)


def with_a_free_variable():
    x = 1
    return lambda: x


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
        function(Instr("RETURN_GENERATOR"), Instr("POP_TOP"), NONE, *NO_INDEX, NONE, Instr("SEND", A),
                 Instr("YIELD_VALUE"), Instr("POP_TOP"), Instr("POP_TOP"), *DROP_INDEX, NONE, RETURN,
                 A, Instr("POP_TOP"), *DROP_INDEX, RETURN, flags=0x23),
        r"item [45] \(SEND\): its label must stand before an END_SEND",
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
    "not an iterator": (
        function(NONE, *NO_INDEX, A, Instr("FOR_ITER", B), Instr("POP_TOP"), Instr("JUMP", A), B, NONE, RETURN),
        r"item [23] \(FOR_ITER\): wants an iterator, there is any object",
    ),
    "an iterator on one path only": (
        function(NONE, Instr("GET_ITER"), NONE, Instr("POP_JUMP_IF_NONE", A), *DROP_INDEX, Instr("POP_TOP"), NONE,
                 *NO_INDEX, A, Instr("FOR_ITER", B), Instr("POP_TOP"), Instr("JUMP", A), B, NONE, RETURN),
        r"item [79] \(FOR_ITER\): wants an iterator, there is ",
    ),
    "not a list": (
        function(Instr("BUILD_SET", 0), NONE, Instr("LIST_APPEND", 1), RETURN),
        r"item 2 \(LIST_APPEND 1\): wants a list or a list of exceptions, there is a set",
    ),
    "keys of another number": (
        function(NONE, Instr("LOAD_CONST", ("a", "b")), Instr("BUILD_CONST_KEY_MAP", 1), RETURN),
        r"item 2 \(BUILD_CONST_KEY_MAP 1\): wants a tuple of 1 keys, there is a tuple of 2",
    ),
    "no exception to raise again": (
        function(NONE, Instr("RERAISE", 0)), r"item 1 \(RERAISE 0\): wants an exception, there is any object",
    ),
    "a closure of another size": (
        function(Instr("LOAD_CLOSURE", "x"), Instr("LOAD_CLOSURE", "x"), Instr("BUILD_TUPLE", 2),
                 Instr("LOAD_CONST", with_a_free_variable().__code__), Instr("MAKE_FUNCTION", frozenset({"closure"})),
                 RETURN, cellvars=["x"]),
        r"item 4 \(MAKE_FUNCTION .*\): wants a tuple of 1 cells for the closure, there is a tuple of 2 cells",
    ),
    "a handler's stack taken away": (
        function(NONE, A, Instr("UNARY_NOT"), B, RETURN, C, Instr("RERAISE", 0), regions=[Region(A, B, C, depth=1)]),
        r"item 2 \(UNARY_NOT\): takes a value of which its handler wants to find 1 on the stack",
    ),
    "a wait that no SEND began": (
        function(Instr("RETURN_GENERATOR"), Instr("POP_TOP"), NONE, Instr("YIELD_VALUE"), Instr("RESUME", 3), RETURN,
                 flags=0x23),
        r"item 4 \(RESUME 3\): resumes a wait for another generator, and is not only after SEND, YIELD_VALUE",
    ),
    "a jump into a wait": (
        function(Instr("RETURN_GENERATOR"), Instr("POP_TOP"), NONE, *NO_INDEX, NONE, Instr("COPY", 1),
                 Instr("POP_JUMP_IF_NONE", A), B, Instr("SEND", C), A, Instr("YIELD_VALUE"), Instr("RESUME", 3),
                 Instr("JUMP_NO_INTERRUPT", B), C, Instr("END_SEND"), RETURN, flags=0x23),
        r"item 1[01] \(RESUME 3\): resumes a wait for another generator, and is not only after SEND, YIELD_VALUE",
    ),
    "a promise that is not kept": (
        function(NONE, Instr("STORE_FAST", ".iterator_0"), NONE, RETURN, varnames=[".iterator_0"]),
        r"item 1 \(STORE_FAST '.iterator_0'\): wants a NULL slot or an iterator, there is any object",
    ),
    "a promise that is hidden": (
        function(Instr("MAKE_CELL", ".type_params"), NONE, RETURN, cellvars=[".type_params"]),
        r"item 0 \(MAKE_CELL '.type_params'\): would put a cell where the variable's name promises something else",
    ),
    "names in a function's slots": (
        function(Instr("LOAD_LOCALS"), RETURN), r"item 0 \(LOAD_LOCALS\): needs a local namespace",
    ),
    "not an item": (function(NONE, "RETURN_VALUE", RETURN), r"item 1 is a str, neither an Instr nor a Label"),
}  # fmt: skip
NOT_SEEN_BY_ENCODE = {
    "past the cell",
    "cell as a plain local",
    "send without its end",
}


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


def changed(region, **fields):
    """A region is checked when it is made, and can be changed after."""
    for name, value in fields.items():
        setattr(region, name, value)
    return region


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("instructions", (NONE, RETURN), r"f: instructions must be a list, not \(<LOAD_CONST>"),
        ("instructions", [NONE, "RETURN_VALUE"], r"f: item 1 is a str, neither an Instr nor a Label: 'RETURN_VALUE'"),
        ("instructions", [Label, NONE, RETURN], r"f: item 0 is a type, neither an Instr nor a Label"),
        ("regions", [(A, B, C)], r"f: region 0: wants a Region, not \(<Label A>"),
        ("regions", [changed(Region(A, B, C), start="A")], r"f: region 0: start must be a Label, not 'A'"),
        (
            "regions",
            [changed(Region(A, B, C), depth=-1)],
            r"f: region 0: depth must be a non-negative int or None, not -1",
        ),
        ("regions", [changed(Region(A, B, C), lasti=1)], r"f: region 0: lasti must be a bool, not 1"),
        ("varnames", "ab", r"f: varnames must be a list of names, not 'ab'"),
        ("cellvars", [1], r"f: cellvars must be a list of names, not \[1\]"),
        ("freevars", ["a", "a (free)"], r"f: freevars names a variable twice"),
        ("names", (None,), r"f: names must be a tuple of names, not \(None,\)"),
        ("consts", [None], r"f: consts must be a tuple, not \[None\]"),
        ("name", 7, r"7: name must be a str, not 7"),
        ("qualname", None, r"f: qualname must be a str, not None"),
        ("filename", b"x", r"f: filename must be a str, not b'x'"),
        ("firstlineno", 1 << 40, r"f: firstlineno must be an int of 32 bits, not 1099511627776"),
        ("argcount", 1.0, r"f: argcount must be an int of 32 bits, not 1.0"),
        ("flags", "3", r"f: flags must be an int of 32 bits, not '3'"),
    ],
)
@pytest.mark.parametrize("refuses", [encode, verify])
def test_fields_of_the_wrong_type_are_refused(field, value, message, refuses):
    bytecode = function(NONE, RETURN)
    setattr(bytecode, field, value)
    with pytest.raises(BytecodeError, match=message):
        refuses(bytecode)


@pytest.mark.parametrize("refuses", [encode, verify])
def test_unreachable_code_needs_its_labels_too(refuses):
    with pytest.raises(BytecodeError, match=r"f: item 2 \(JUMP\): its label is not in the instructions"):
        refuses(function(NONE, RETURN, Instr("JUMP", A)))


def test_sizes_beyond_what_compilers_write():
    stores = [item for i in range(300) for item in (NONE, Instr("STORE_FAST", f"v{i}"))]
    loads = [item for i in range(300) for item in (Instr("LOAD_FAST", f"v{i}"), Instr("POP_TOP"))]
    far = [Instr("NOP")] * 70000
    deep = [Instr("LOAD_CONST", i) for i in range(30000)]
    names = [f"v{i}" for i in range(300)]
    bytecode = function(
        Instr("RESUME", 0), *stores, *loads, NONE, Instr("POP_JUMP_IF_NONE", A), *far, A, *deep,
        Instr("BUILD_TUPLE", 30000), RETURN, varnames=names,
    )  # fmt: skip
    verify(bytecode)
    code = encode(bytecode)
    assert code.co_stacksize == 30000
    assert FunctionType(code, {})() == tuple(range(30000))
    assert len(decode(code).instructions) == len(bytecode.instructions)


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
    states = stack_states(bytecode)
    assert states.before == [0, 0, 1, 0, 1, None]
    assert states.deepest == 1


def test_depth_of_regions_is_found():
    bytecode = function(NONE, A, Instr("NOP"), B, RETURN, C, Instr("RERAISE", 0), regions=[Region(A, B, C, None, True)])
    states = stack_states(bytecode)
    assert states.regions == {0: 1}
    assert states.before[6] == 3


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
