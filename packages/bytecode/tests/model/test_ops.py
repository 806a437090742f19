"""The canonical table against the interpreter's own opcode metadata."""

import dis
import opcode

import pytest

from framesmith_bytecode import OPS
from framesmith_bytecode.cpython.running import TABLE, TABLES
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


def test_opcode_numbers_are_the_interpreters():
    for name, number in TABLE.opcodes.items():
        assert opcode.opmap[name] == number


def test_no_opcode_is_forgotten():
    internal = {"INTERPRETER_EXIT", "RESERVED", "EXIT_INIT_CHECK", "ENTER_EXECUTOR", "TRACE_RECORD"}
    known = {
        name
        for name, number in opcode.opmap.items()
        if number < 256 and not name.startswith("INSTRUMENTED_") and name not in internal
    }
    assert known == set(TABLE.opcodes)


def test_every_opcode_has_a_reader():
    """Each has a canonical namesake or a reader, except those that decoding removes."""
    hidden = {"EXTENDED_ARG", "END_FOR"}
    unread = {name for name, number in TABLE.opcodes.items() if number not in READERS and name not in OPS}
    assert unread <= hidden


def test_every_operation_of_this_version_can_be_written():
    """The others are of later versions; this test finds operations that a new table drops."""
    missing = {name for name, writer in WRITERS.items() if writer is _missing}
    later = {row.name for row in OPS.values() if row.since and TABLE.version < tuple(map(int, row.since.split(".")))}
    assert missing <= later


def test_cache_sizes_are_the_interpreters():
    entries = opcode._inline_cache_entries
    for name, number in TABLE.opcodes.items():
        expected = entries[number] if isinstance(entries, list) else entries.get(name, 0)
        assert TABLE.caches.get(name, 0) == expected, name


@pytest.mark.parametrize("name", sorted(set(OPS) & set(TABLE.opcodes) - DIFFERENT_EFFECTS))
def test_stack_effects_are_the_interpreters(name):
    row = OPS[name]
    number = TABLE.opcodes[name]
    for arg in (2, 3) if row.operand in ("count",) and name != "RAISE_VARARGS" else (1,):
        shapes = {"count": arg, "bool": True, "unpack_ex": (1, 0), "interpolation": InterpolationShape("", True)}
        operand = shapes.get(row.operand)
        ours = pushes(name, operand) - pops(name, operand)
        theirs = dis.stack_effect(number, arg if number >= opcode.HAVE_ARGUMENT else None, jump=False)
        assert ours == theirs, name


def test_intrinsics_are_the_interpreters():
    for ours, theirs in ((TABLE.intrinsics_1, "_intrinsic_1_descs"), (TABLE.intrinsics_2, "_intrinsic_2_descs")):
        names = getattr(opcode, theirs, [])
        renamed = {"PRINT": "PRINT_EXPR"}
        expected = {renamed.get(n, n): i for i, n in enumerate(n.split("_", 1)[1] for n in names)}
        expected = {n.split("_", 1)[1] if n.startswith(("1_", "2_")) else n: i for n, i in expected.items() if i}
        assert dict(ours) == expected


def test_versions():
    assert list(TABLES) == [(3, minor) for minor in range(11, 16)]


def test_what_opcodes_stand_for_is_the_interpreters():
    """Operands that are indices into the interpreter's own lists."""
    for name, theirs in (("common_constants", "_common_constants"), ("special_methods", "_special_method_names")):
        assert list(getattr(TABLE, name)) == list(getattr(opcode, theirs, []))
    assert bool(TABLE.small_ints) == ("LOAD_SMALL_INT" in opcode.opmap)
