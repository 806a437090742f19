"""Every public function refuses wrong input with a message: the input, the expected kind, the nearest choice."""

import opcode

import pytest

from framesmith_bytecode import (
    OPS,
    Analyses,
    Bytecode,
    BytecodeError,
    Codegen,
    ContinuationError,
    Instr,
    Label,
    Liveness,
    Region,
    decode,
    encode,
    format_bytecode,
    format_python,
    make_continuation,
    problems,
    split,
    verify,
    why_no_continuation,
)
from framesmith_bytecode.analyses.cfg import control_flow
from framesmith_bytecode.analyses.liveness import liveness
from framesmith_bytecode.analyses.walk import stack_states
from framesmith_bytecode.model.ops import SPELT_HERE


def sample(x):
    for i in range(x):
        x += i
    return x


CODE = sample.__code__
FINE = decode(CODE)
NO_ITEM = Bytecode("f", ["NOP"])
LOST = Bytecode("f", [Instr("JUMP", Label())])

TAKE_BYTECODE = [
    encode, verify, problems, stack_states, liveness, control_flow, Analyses,
    format_bytecode, format_python,
]  # fmt: skip
TAKE_AN_INDEX = [split, make_continuation, why_no_continuation]


@pytest.mark.parametrize("taker", TAKE_BYTECODE, ids=lambda taker: taker.__name__)
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (CODE, r"a Bytecode, not code; decode\(code\) makes one"),
        (sample, r"a Bytecode, not function; a function's is decode\(f.__code__\)"),
        (None, r"a Bytecode, not NoneType"),
        (Codegen(), r"a Bytecode, not Codegen; its is .bytecode\(\)"),
        (Analyses(FINE), r"a Bytecode, not Analyses; its is .bytecode"),
    ],
)
def test_only_a_bytecode_will_do(taker, value, message):
    with pytest.raises(TypeError, match=f"^{taker.__name__} takes {message}"):
        taker(value)


@pytest.mark.parametrize("taker", TAKE_AN_INDEX, ids=lambda taker: taker.__name__)
@pytest.mark.parametrize(
    ("value", "message"), [(CODE, r"not code; decode\(code\) makes one"), (sample, r"not function; a function's is")]
)
def test_a_place_is_in_a_bytecode(taker, value, message):
    with pytest.raises(TypeError, match=rf"^{taker.__name__} takes a Bytecode \(or its Analyses\), {message}"):
        taker(value, 1)


@pytest.mark.parametrize("taker", TAKE_AN_INDEX, ids=lambda taker: taker.__name__)
def test_a_place_is_an_index(taker):
    last = len(FINE.instructions) - 1
    with pytest.raises(TypeError, match=f"takes the index of an item, an int from 0 to {last}, not 'x'"):
        taker(FINE, "x")


@pytest.mark.parametrize("index", [10**9, -1, len(FINE.instructions)])
def test_a_place_is_inside(index):
    outside = f"index {index} is outside the {len(FINE.instructions)} items; a continuation starts at one of 0 to"
    assert outside in why_no_continuation(FINE, index)
    for taker in (split, make_continuation):
        with pytest.raises(ContinuationError, match=f"sample: {outside}"):
            taker(FINE, index)


UNSOUND = [
    (NO_ITEM, r"f: item 0 is a str, neither an Instr nor a Label: 'NOP'"),
    (LOST, r"f: item 0 \(JUMP\): its label is not in the instructions"),
    (Bytecode("f", [FINE.instructions[0]], regions=3), r"f: regions must be a list, not 3"),
    (Bytecode("f", []), "f: "),
]


@pytest.mark.parametrize("taker", [encode, verify, stack_states, liveness, Liveness, control_flow])
@pytest.mark.parametrize(("bytecode", "message"), UNSOUND)
def test_what_cannot_be_read_is_named(taker, bytecode, message):
    with pytest.raises(BytecodeError, match=message):
        taker(bytecode)


def test_split_names_what_cannot_be_read():
    with pytest.raises(BytecodeError, match="item 0 is a str"):
        split(NO_ITEM, 0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"null_slots": 5}, TypeError, r"null_slots must be stack positions \(ints; 0 is the bottom\), not 5"),
        ({"null_slots": ["x"]}, TypeError, r"null_slots must be stack positions"),
        ({"bound": "xi"}, TypeError, r"bound must be a collection of variable names, not 'xi'; did you mean \['xi'\]"),
        ({"bound": 5}, TypeError, r"bound must be a collection of variable names, not 5"),
        (
            {"bound": {"x", "j"}},
            ContinuationError,
            r"bound names \['j'\], which are no variables; known are \['x', 'i'\]",
        ),
        ({"name": 5}, BytecodeError, r"name must be a str, not 5"),
    ],
)
def test_options_of_a_continuation(options, error, message):
    with pytest.raises(error, match=message):
        make_continuation(FINE, 3, **options)


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (10**9, IndexError, rf"takes the index of an item, 0 to {len(FINE.instructions) - 1}, not 1000000000"),
        (-1, IndexError, r"not -1"),
        ("x", TypeError, r"takes the index of an item, an int from 0"),
    ],
)
def test_liveness_is_asked_for_an_item(index, error, message):
    with pytest.raises(error, match=f"Liveness.before.*{message}"):
        liveness(FINE).before(index)


A, B, C = Label("A"), Label("B"), Label("C")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((1, 2, 3), "start must be a Label, not 1"),
        ((A, B, None), "handler must be a Label, not None"),
        ((A, B, C, -1), "depth must be a non-negative int or None, not -1"),
        ((A, B, C, 0, 1), "lasti must be a bool, not 1"),
    ],
)
def test_regions_are_checked_when_made(fields, message):
    with pytest.raises(ValueError, match=f"Region: {message}"):
        Region(*fields)


@pytest.mark.parametrize(
    ("op", "arg", "message"),
    [
        ("RETURN_CONST", 3, r"unknown operation 'RETURN_CONST'; here it is spelt LOAD_CONST, RETURN_VALUE$"),
        ("JUMP_BACKWARD", A, r"here it is spelt JUMP$"),
        ("INSTRUMENTED_JUMP_FORWARD", A, r"here it is spelt JUMP$"),
        ("POP_JUMP_BACKWARD_IF_NOT_NONE", A, r"here it is spelt POP_JUMP_IF_NOT_NONE$"),
        ("JUMP_IF_TRUE_OR_POP", A, r"here it is spelt COPY 1, POP_JUMP_IF_TRUE, POP_TOP$"),
        ("LOAD_FAST_LOAD_FAST", ("a", "b"), r"here it is spelt LOAD_FAST, LOAD_FAST$"),
        ("STORE_FAST__LOAD_FAST", ("a", "b"), r"here it is spelt STORE_FAST, LOAD_FAST$"),
        ("CALL_KW", 2, r"here it is spelt CALL with a CallShape\(argc, kwnames\)$"),
        ("FORMAT_VALUE", 0, r"here it is spelt CONVERT_VALUE .* FORMAT_SIMPLE or FORMAT_WITH_SPEC$"),
        ("CACHE", None, r"here it is spelt nothing: leave it out"),
        ("SETUP_WITH", A, r"here it is spelt a Region"),
        ("load_fast", "x", r"unknown operation 'load_fast'; did you mean 'LOAD_FAST'\?"),
        ("jump_backward", A, r"unknown operation 'jump_backward'; here it is spelt JUMP$"),
        (3, None, r"unknown operation 3: an operation is a str, a key of OPS"),
        (["NOP"], None, r"unknown operation \['NOP'\]: an operation is a str"),
        ("BINARY_OP", 0, r"BINARY_OP takes one of '\+', '&', .*'\^=', not 0"),
        ("COMPARE_OP", "not in", r"COMPARE_OP does not know 'not in'; here it is spelt CONTAINS_OP True"),
        ("COMPARE_OP", "near", r"COMPARE_OP does not know 'near'; it takes one of '<', '<=',"),
    ],
)
def test_operations_are_spelt_out(op, arg, message):
    with pytest.raises(ValueError, match=message):
        Instr(op, arg)


def test_every_operation_of_this_interpreter_is_known_or_spelt_here():
    names = {name.removeprefix("INSTRUMENTED_") for name in opcode.opmap} - {"INSTRUCTION", "LINE"}
    assert names - set(OPS) - set(SPELT_HERE) == set()
    assert not set(OPS) & set(SPELT_HERE)


class Named:
    def reconstruct(self, codegen):
        codegen.load_const(1)


CODEGEN = [
    (lambda g: Codegen("ab"), TypeError, r"argnames must be a list of names, not 'ab'; did you mean \['ab'\]"),
    (lambda g: Codegen(3), TypeError, r"argnames must be a list of names, not 3"),
    (lambda g: Codegen([1]), TypeError, r"argnames must be a list of names, not \[1\]"),
    (lambda g: Codegen(varnames="ab"), TypeError, r"varnames must be"),
    (lambda g: Codegen(cellvars="ab"), TypeError, r"cellvars must be"),
    (lambda g: Codegen(freevars=7), TypeError, r"freevars must be"),
    (lambda g: Codegen.like(None), TypeError, r"Codegen.like takes a Bytecode, not NoneType"),
    (lambda g: g.build("lst", 1), ValueError, r"build takes one of 'tuple', .*, not 'lst'; did you mean 'list'"),
    (lambda g: g.branch(A, on="zero"), ValueError, r"branch's on= takes one of 'true', .*, not 'zero'"),
    (lambda g: g.pop(-1), ValueError, r"pop takes an int, at least 0, not -1"),
    (lambda g: g.call(2, "ab"), TypeError, r"kwnames must be a list of names, not 'ab'; did you mean \['ab'\]"),
    (lambda g: g.call(1, ["a", "b"]), ValueError, r"no more names than arguments"),
    (lambda g: g.make_function(sample), TypeError, r"make_function takes a code object .*, not <function sample"),
    (lambda g: g.make_function(CODE, "x"), TypeError, r"closure must be a list of names, not 'x'"),
    (lambda g: g(3), TypeError, r"3 has no method reconstruct\(codegen\); load_const pushes a constant"),
    (lambda g: g.restore_stack([3]), TypeError, r"3 has no method reconstruct"),
    (lambda g: g.store(3), TypeError, r"store takes the name of a variable, not 3"),
    (lambda g: g.extend(["x"]), TypeError, r"extend takes instructions and labels, not 'x'"),
    (lambda g: g.mark("x"), TypeError, r"mark takes a Label, not 'x'"),
    (lambda g: g.protected(3).__enter__(), TypeError, r"protected takes a Label, not 3"),
    (lambda g: g.forget("nope"), ValueError, r"'nope' is not a variable of this function"),
    (lambda g: g.forget("c"), ValueError, r"forget takes a local; 'c' is a cell or free variable"),
    (lambda g: g.spill_stack("ab"), TypeError, r"names must be a list of names, not 'ab'"),
]  # fmt: skip


@pytest.mark.parametrize(("act", "error", "message"), CODEGEN)
def test_the_generator_refuses(act, error, message):
    codegen = Codegen(["x"], cellvars=["c"])
    with pytest.raises(error, match=message):
        act(codegen)
    assert codegen.instructions == []
    assert codegen.varnames == ["x"]
