"""Loads that borrow their local's reference: the compiler's choice for its code, never a wrong one for edited code."""

import dis
import gc
import random
from types import FunctionType

import pytest

from framesmith_bytecode import Bytecode, Instr, Label, Region, decode, encode, split
from framesmith_bytecode.analyses.borrow import borrowable
from framesmith_bytecode.analyses.walk import stack_states
from framesmith_bytecode.cpython.opcodes import BORROWS

needs_borrows = pytest.mark.skipif(not BORROWS, reason="loads borrow since 3.14")


def borrowed(code):
    """Names of locals that a code object borrows, in order."""
    return [item.argval for item in dis.get_instructions(code) if "BORROW" in item.opname]


def found(items, regions=(), **header):
    """The items that may borrow."""
    bytecode = Bytecode("f", list(items), list(regions), varnames=["a", "b"], argcount=2, **header)
    return borrowable(bytecode, stack_states(bytecode))


LOAD, CHANGES = Instr("LOAD_FAST", "a"), [
    [Instr("LOAD_CONST", None), Instr("STORE_FAST", "a")],
    [Instr("DELETE_FAST", "a")],
    [Instr("PUSH_NULL"), Instr("STORE_FAST", "a")],
]  # fmt: skip


def test_a_value_that_is_taken_in_its_block_borrows():
    assert found([LOAD, Instr("RETURN_VALUE")]) == {0}
    assert found([LOAD, Instr("LOAD_ATTR", "x"), Instr("STORE_FAST", "a"), LOAD, Instr("RETURN_VALUE")]) == {0, 3}


@pytest.mark.parametrize("change", CHANGES)
def test_a_local_that_changes_meanwhile_is_not_borrowed(change):
    assert found([LOAD, *change, Instr("RETURN_VALUE")]) == set()
    assert found([LOAD, Instr("COPY", 1), Instr("POP_TOP"), *change, Instr("RETURN_VALUE")]) == set()
    assert found([LOAD, Instr("FORMAT_SIMPLE"), *change, Instr("RETURN_VALUE")]) == set()
    other = Instr("LOAD_FAST", "b")
    assert found([other, LOAD, Instr("SWAP", 2), *change, Instr("POP_TOP"), Instr("RETURN_VALUE")]) == {0}


def test_a_value_is_not_stored_as_a_local_and_does_not_leave_its_block():
    assert found([LOAD, Instr("STORE_FAST", "b"), Instr("LOAD_CONST", None), Instr("RETURN_VALUE")]) == set()
    label = Label()
    tests = [LOAD, Instr("LOAD_FAST", "b"), Instr("POP_JUMP_IF_FALSE", label), label, Instr("RETURN_VALUE")]
    assert found(tests) == {1}


@pytest.mark.parametrize("change", CHANGES)
def test_a_handler_that_changes_the_local_finds_the_value_alive(change):
    """The value is below the region's depth, so it is on the stack of the handler."""
    start, end, handler = Label(), Label(), Label()
    call = [start, Instr("LOAD_GLOBAL", "g"), Instr("POP_TOP"), end, Instr("RETURN_VALUE")]
    rest = [handler, Instr("PUSH_EXC_INFO"), Instr("POP_TOP"), Instr("POP_EXCEPT"), Instr("RETURN_VALUE")]
    region = [Region(start, end, handler, 1)]
    assert found([LOAD, *call, *rest], region) == {0}
    assert found([LOAD, *call, *rest[:-1], *change, rest[-1]], region) == set()


@needs_borrows
def test_an_edited_handler_returns_an_object_that_lives():
    start, end, handler = Label(), Label(), Label()
    items = [
        Instr("RESUME", 0), Instr("BUILD_LIST", 0), Instr("STORE_FAST", "a"), LOAD, start,
        Instr("LOAD_GLOBAL", "missing"), Instr("POP_TOP"), end, Instr("RETURN_VALUE"),
        handler, Instr("PUSH_EXC_INFO"), Instr("POP_TOP"), Instr("POP_EXCEPT"), Instr("DELETE_FAST", "a"),
        Instr("RETURN_VALUE"),
    ]  # fmt: skip
    code = encode(Bytecode("f", items, [Region(start, end, handler, 1)], varnames=["a"]))
    assert borrowed(code) == []
    made = [FunctionType(code, {})() for _ in range(1000)]
    gc.collect()
    assert made == [[]] * 1000
    assert len({id(each) for each in made}) == 1000


@needs_borrows
def test_edits_take_the_borrow_back():
    """A store between load and use, inserted into compiled code."""

    def two(a, b):
        return [a, b]

    bytecode = decode(two.__code__)
    assert borrowed(encode(bytecode)) == [("a", "b")]
    at = next(i for i, item in enumerate(bytecode.instructions) if isinstance(item, Instr) and item.arg == "b")
    bytecode.instructions[at + 1 : at + 1] = [Instr("LOAD_CONST", None), Instr("STORE_FAST", "a")]
    code = encode(bytecode)
    assert borrowed(code) == []
    assert FunctionType(code, {})([1], 2) == [[1], 2]


@needs_borrows
def test_prefixes_and_continuations_own_what_they_hand_over():
    def work(a, b):
        return [a.append(b), (a, b)]

    bytecode = decode(work.__code__)
    for index in range(len(bytecode.instructions)):
        parts = split(bytecode, index)
        assert FunctionType(parts.prefix, {})([], [random.random()])[0] is None


@needs_borrows
def test_a_block_that_only_the_compiler_saw_is_a_label():
    def chosen(a, b):
        return print(a, b if True else 2)

    bytecode = decode(chosen.__code__)
    assert encode(bytecode).co_code == chosen.__code__.co_code
    assert borrowed(chosen.__code__) == ["b"]
    bytecode.instructions = [item for item in bytecode.instructions if isinstance(item, Instr)]
    assert borrowed(encode(bytecode)) == ["a", "b"]
