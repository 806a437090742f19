"""The canonical table against the interpreter's own opcode metadata."""

import dis
import importlib.util
import opcode
import runpy

import pytest

from framesmith_bytecode import OPS
from framesmith_bytecode.cpython.opcodes import CACHES, COMMON_CONSTANTS, HELPERS, OPCODES, SPECIAL_METHODS
from framesmith_bytecode.cpython.running import TABLE
from framesmith_bytecode.cpython.version_table import TABLES
from framesmith_bytecode.model.ops import InterpolationShape, pops, pushes
from framesmith_bytecode.reading.readers import READERS
from framesmith_bytecode.writing.writers import WRITERS, _missing

# One canonical form stands for several encodings, or the stack differs on purpose; see the README.
DIFFERENT_EFFECTS = {
    "LOAD_METHOD", "CALL", "CALL_FUNCTION_EX", "MAKE_FUNCTION", "FOR_ITER", "SEND", "LOAD_GLOBAL",
    "COMPARE_OP", "PRINT_EXPR", "IMPORT_STAR", "LOAD_ATTR", "LOAD_SUPER_ATTR", "RERAISE", "UNPACK_EX",
    "CALL_INTRINSIC_1", "CALL_INTRINSIC_2", "RETURN_GENERATOR", "YIELD_VALUE", "END_ASYNC_FOR",
    "CLEANUP_THROW", "RETURN_VALUE",
}  # fmt: skip


def test_every_opcode_has_a_reader():
    """Each has a canonical namesake or a reader, except those that decoding removes or the compiler never emits."""
    hidden = {"EXTENDED_ARG", "END_FOR"}
    internal = {"INTERPRETER_EXIT", "RESERVED", "EXIT_INIT_CHECK", "ENTER_EXECUTOR", "TRACE_RECORD"}
    unread = {name for name, number in OPCODES.items() if number not in READERS and name not in OPS}
    assert unread <= hidden | internal


def test_every_operation_of_this_version_can_be_written():
    """The others are of later versions; this test finds operations that a new table drops."""
    missing = {name for name, writer in WRITERS.items() if writer is _missing}
    later = {row.name for row in OPS.values() if row.since and TABLE.version < tuple(map(int, row.since.split(".")))}
    assert missing <= later


@pytest.mark.parametrize("name", sorted(set(OPS) & set(OPCODES) - DIFFERENT_EFFECTS))
def test_stack_effects_are_the_interpreters(name):
    row = OPS[name]
    number = OPCODES[name]
    for arg in (2, 3) if row.operand in ("count",) and name != "RAISE_VARARGS" else (1,):
        shapes = {"count": arg, "bool": True, "unpack_ex": (1, 0), "interpolation": InterpolationShape("", True)}
        operand = shapes.get(row.operand)
        ours = pushes(name, operand) - pops(name, operand)
        theirs = dis.stack_effect(number, arg if number >= opcode.HAVE_ARGUMENT else None, jump=False)
        assert ours == theirs, name


def test_every_helper_of_the_interpreter_has_a_name():
    """A new one is an operation of its own, or a choice of CALL_INTRINSIC_1 or CALL_INTRINSIC_2."""
    for call, numbers in HELPERS.items():
        assert set(numbers) <= set(OPS) | set(OPS[call].choices)
        assert bool(numbers) == (call in OPCODES)


def test_versions():
    assert list(TABLES) == [(3, minor) for minor in range(11, 16)]


def test_the_interpreters_own_lists_are_found():
    for name, listed in (("LOAD_COMMON_CONSTANT", COMMON_CONSTANTS), ("LOAD_SPECIAL", SPECIAL_METHODS)):
        assert bool(listed) == (name in OPCODES)
    assert CACHES["LOAD_GLOBAL"] > 1 > CACHES["POP_TOP"]


@pytest.mark.parametrize(
    ("operation", "names"),
    [
        ("LOAD_COMMON_CONSTANT", "_common_constants"),
        ("LOAD_SPECIAL", "_special_method_names"),
        ("CALL_INTRINSIC_1", "_intrinsic_1_descs"),
        ("CALL_INTRINSIC_2", "_intrinsic_2_descs"),
    ],
)
@pytest.mark.parametrize("left", ["missing", "empty"])
def test_a_list_that_the_interpreter_must_have(operation, names, left, monkeypatch):
    """A fresh import is refused where the interpreter has the opcode, also one that this version lacks."""
    file = importlib.util.find_spec("framesmith_bytecode.cpython.opcodes").origin
    if left == "empty":
        monkeypatch.setattr(opcode, names, [], raising=False)
    else:
        monkeypatch.delattr(opcode, names, raising=False)
    others = {name: number for name, number in opcode.opmap.items() if name != operation}
    monkeypatch.setattr(opcode, "opmap", others)
    assert operation not in runpy.run_path(file)["OPCODES"]
    monkeypatch.setattr(opcode, "opmap", {**others, operation: 200})
    with pytest.raises(ImportError, match=rf"no operands of {operation}: opcode\.{names} is missing or empty"):
        runpy.run_path(file)
