"""Wrong instructions are refused at construction with helpful messages."""

import pytest

from framesmith_bytecode import OPS, CallShape, Instr, InterpolationShape, Label, Position, SuperShape


@pytest.mark.parametrize(
    ("op", "arg", "message"),
    [
        ("LOAD_FASTT", "x", r"unknown operation 'LOAD_FASTT'; did you mean 'LOAD_FAST'"),
        ("LOAD_FAST", 3, r"LOAD_FAST takes the name of a local variable, not 3"),
        ("JUMP", 12, r"JUMP takes a Label, not 12"),
        ("POP_TOP", 1, r"POP_TOP takes no operand, not 1"),
        ("SWAP", 1, r"SWAP takes an int at least 2, not 1"),
        ("COPY", 0, r"COPY takes an int at least 1, not 0"),
        ("COPY", True, r"COPY takes a non-negative int"),
        ("BUILD_SLICE", 4, r"BUILD_SLICE takes an int from 2 to 3, not 4"),
        ("BUILD_TUPLE", -1, r"BUILD_TUPLE takes a non-negative int, not -1"),
        ("BINARY_OP", "<>", r"BINARY_OP does not know '<>'; it takes one of "),
        ("COMPARE_OP", "=<", r"COMPARE_OP does not know '=<'; nearest is"),
        ("IS_OP", 1, r"IS_OP takes a bool, not 1"),
        ("CALL", 2, r"CALL takes a CallShape"),
        ("CALL", CallShape(1, ("a", "b")), r"no more names than arguments"),
        ("CALL", CallShape(1, (1,)), r"CALL takes a CallShape"),
        ("MAKE_FUNCTION", frozenset({"doc"}), r"a frozenset of defaults, kwdefaults, annotations, annotate, closure"),
        ("BUILD_INTERPOLATION", InterpolationShape("str()"), r"takes an InterpolationShape\(conversion, has_format\)"),
        ("UNPACK_EX", (1, 2, 3), r"a pair \(before, after\)"),
        ("LOAD_SUPER_ATTR", "x", r"SuperShape"),
        ("MATCH_CLASS", 1 << 31, r"MATCH_CLASS takes a non-negative int, not 2147483648"),
        ("UNPACK_SEQUENCE", 1 << 23, r"UNPACK_SEQUENCE takes an int up to 8388607, not 8388608"),
        ("UNPACK_EX", (3, 1 << 23), r"a pair \(before, after\) of non-negative ints"),
        ("CALL_INTRINSIC_1", "TYPEVARR", r"nearest is 'TYPEVAR'"),
    ],
)
def test_refused(op, arg, message):
    with pytest.raises(ValueError, match=message):
        Instr(op, arg)


@pytest.mark.parametrize("position", [7, (1,), Position("1"), Position(-3), Position(1, 1, -4, -1), Position(1.5)])
def test_positions_are_checked(position):
    with pytest.raises(ValueError, match=r"NOP comes from a Position .*, not "):
        Instr("NOP", None, position)


def test_instruction_is_a_value_with_identity():
    position = Position(3, 3, 0, 4)
    one, other = Instr("LOAD_CONST", 1, position), Instr("LOAD_CONST", 1, position)
    assert one != other
    assert one.lineno == 3
    assert one.replace(arg=2).arg == 2
    assert one.replace(arg=2).position == position
    assert {one: "a", other: "b"}[one] == "a"
    with pytest.raises(AttributeError):
        one.op = "NOP"


def test_a_changed_copy_is_checked_too():
    item = Instr("COPY", 1)
    for change in (item.replace, item._replace):
        assert change(arg=2).arg == 2
        with pytest.raises(ValueError, match="COPY takes an int at least 1, not 0"):
            change(arg=0)


def test_labels_differ():
    assert Label() != Label()


def test_operands_of_all_kinds_are_accepted():
    samples = {
        "none": None,
        "const": object(),
        "local": "x",
        "deref": "x",
        "name": "x",
        "label": Label(),
        "count": 2,
        "index": 0,
        "bool": True,
        "call": CallShape(1, ("k",)),
        "super": SuperShape("a", True),
        "unpack_ex": (1, 2),
        "function": frozenset({"closure"}),
        "interpolation": InterpolationShape("repr", True),
    }
    for name, row in OPS.items():
        sample = row.choices[0] if row.operand == "choice" else samples[row.operand]
        assert Instr(name, sample).op == name
