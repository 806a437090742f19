"""The first file to run: one function through everything, in well under a second."""

from types import FunctionType

from framesmith_bytecode import Codegen, Instr, decode, encode, format_bytecode, split, verify


def add_up(n, start=0):
    total = start
    for i in range(n):
        total += i
    return total


def test_decode_encode_run():
    bytecode = decode(add_up.__code__)
    verify(bytecode)
    again = FunctionType(encode(bytecode), globals(), "add_up", (0,))
    assert again(5) == add_up(5) == 10
    assert "FOR_ITER" in format_bytecode(bytecode)


def test_generate():
    codegen = Codegen(["x"])
    codegen.load("x")
    codegen.load_const(2)
    codegen.emit("BINARY_OP", "*")
    codegen.return_value()
    function = FunctionType(encode(codegen.bytecode("double")), {})
    assert function(21) == 42


def test_split_in_loop():
    bytecode = decode(add_up.__code__)
    index = next(i for i, item in enumerate(bytecode.instructions) if isinstance(item, Instr) and item.arg == "+=")
    function = FunctionType(split(bytecode, index).prefix, globals(), "add_up", (0,))
    assert [function(n) for n in range(5)] == [add_up(n) for n in range(5)]
