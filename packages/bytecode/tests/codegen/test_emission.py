"""Emission without variables: calls with unpacked arguments, blocks that must run to their end, outputs."""

import collections
import contextlib
import traceback
import types

import pytest

from framesmith_bytecode import Bytecode, BytecodeError, Codegen, Instr, Label, decode, encode, verify


def generator(*names, **options):
    return Codegen(list(names), **options)


def build(codegen):
    bytecode = codegen.bytecode("generated")
    verify(bytecode)
    return types.FunctionType(encode(bytecode), {"__builtins__": __builtins__})


def collect(*args, **kwargs):
    return args, kwargs


class Mapping:
    def keys(self):
        return ["k"]

    def __getitem__(self, key):
        return key * 2


def unpacking_call():
    """`return f(*a, **k)`."""
    codegen = generator("f", "a", "k")
    codegen.push_callable(lambda: codegen.load("f"))
    codegen.load("a")
    codegen.load("k")
    codegen.call_ex(True)
    codegen.return_value()
    return codegen


@pytest.mark.parametrize(
    "keywords",
    [{"k": "kk"}, collections.OrderedDict(k="kk"), types.MappingProxyType({"k": "kk"}), Mapping()],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("arguments", [(1, 2), [1, 2], range(1, 3)], ids=lambda value: type(value).__name__)
def test_any_iterable_and_mapping_can_be_unpacked(arguments, keywords):
    assert build(unpacking_call())(collect, arguments, keywords) == ((1, 2), {"k": "kk"})


def test_what_cannot_be_unpacked_is_a_type_error():
    function = build(unpacking_call())
    for arguments, keywords in (((), 5), (5, {}), ((), {1: 2})):
        with pytest.raises(TypeError):
            function(collect, arguments, keywords)


def test_a_dict_made_on_the_spot_is_not_copied():
    codegen = generator("f")
    codegen.push_callable(lambda: codegen.load("f"))
    codegen.load_const(())
    codegen.load_const("k")
    codegen.load_const(1)
    codegen.build("map", 1)
    codegen.call_ex(True)
    codegen.return_value()
    assert [item.op for item in codegen.instructions].count("BUILD_MAP") == 1
    assert build(codegen)(collect) == ((), {"k": 1})


def test_keywords_of_unknown_kind_are_refused():
    """The interpreter assumes a dict without a check."""
    bytecode = decode((lambda f, a, k: f(*a, **k)).__code__)
    kept = [item for item in bytecode.instructions if isinstance(item, Instr)]
    kept = [item for item in kept if item.op not in ("BUILD_MAP", "DICT_MERGE")]
    bytecode.instructions = list(kept)
    for refuses in (encode, verify):
        with pytest.raises(BytecodeError, match=r"CALL_FUNCTION_EX True.*wants a dict made here .*there is any object"):
            refuses(bytecode)


def note(codegen, text):
    codegen.load("log")
    codegen.load_method("append")
    codegen.load_const(text)
    codegen.call_method(1)
    codegen.pop()


OUT = Label("out")
LEAVE = [
    (lambda g: (g.load_const(5), g.return_value()), "<RETURN_VALUE> leaves it"),
    (lambda g: g.jump(OUT), "<JUMP <Label out>> leaves it"),
    (lambda g: (g.load("log"), g.branch(OUT, on="true")), "<POP_JUMP_IF_TRUE <Label out>> leaves it"),
]


@pytest.mark.parametrize(("leave", "message"), LEAVE)
def test_blocks_are_not_left_in_the_middle(leave, message):
    codegen = generator("log")
    codegen.load("log")
    with pytest.raises(ValueError, match=f"the body of with_block must run to its end, and {message}"):
        codegen.with_block(lambda: leave(codegen))


def test_branches_inside_a_block():
    codegen = generator("log", "manager")

    def body():
        skip = Label()
        codegen.load("log")
        codegen.branch(skip, on="true")
        note(codegen, "empty")
        codegen.mark(skip)

    codegen.load("manager")
    codegen.with_block(body)
    codegen.load_const(None)
    codegen.return_value()
    log = []
    build(codegen)(log, contextlib.nullcontext())
    build(codegen)(log, contextlib.nullcontext())
    assert log == ["empty"]


@pytest.mark.parametrize("template", [None, Bytecode("t", firstlineno=30)])
def test_every_instruction_has_a_line(template):
    """Tools that print tracebacks rely on one."""
    codegen = generator() if template is None else Codegen.like(template)
    codegen.load_const(1)
    codegen.load_const(0)
    codegen.emit("BINARY_OP", "/")
    codegen.return_value()
    with pytest.raises(ZeroDivisionError) as caught:
        build(codegen)()
    assert traceback.extract_tb(caught.tb)[-1].lineno == (1 if template is None else 30)


class Value:
    def reconstruct(self, codegen):
        codegen.load_output(self)


def test_outputs_of_a_generated_call():
    first, second, third = Value(), Value(), Value()
    codegen = generator("x")
    for value in (second, first, third, second):
        codegen(value)
    codegen.build("tuple", 4)
    codegen.return_value()
    assert codegen.outputs == [second, first, third]
    with codegen.in_front():
        codegen.push_callable(lambda: codegen.load_const(lambda x: (x + 1, x + 2, x + 3)))
        codegen.load("x")
        codegen.call(1)
        codegen.store_outputs()
    assert build(codegen)(10) == (11, 12, 13, 11)


def test_outputs_are_distinguished_by_identity():
    codegen = generator("x")
    for value in ([], [], 1):
        codegen.load_output(value)
    assert len(codegen.outputs) == 3


def test_a_temporary_never_has_the_name_of_a_variable():
    codegen = generator("__tmp_0", cellvars=["__tmp_1"])
    assert codegen.new_temp() == "__tmp_2"


def test_temporaries_have_the_same_names_in_all_code():
    """CPython 3.12 never frees interned names."""
    assert [generator().new_temp() for _ in range(2)] == ["__tmp_0"] * 2
