"""`encode` writes the compiler's code, instructions removed by `decode` included; malformed code is refused."""

from types import CodeType

import pytest

from framesmith_bytecode import CallShape, Instr, Label, decode, encode
from framesmith_bytecode.corpus.round_trip import round_trip_problem
from framesmith_bytecode.cpython.exception_table import Entry, write_exception_table
from framesmith_bytecode.cpython.opcodes import NAMES, OPCODES
from framesmith_bytecode.cpython.running import TABLE
from framesmith_bytecode.nested import map_code, walk_code
from framesmith_bytecode.reading.readers import DecodeError

SOURCES = {
    "a loop that only its exit leaves": "for x in y:\n  with z:\n    raise x",
    "names of a method's keywords": "a.b(c=1); a.b(d, *e, c=1); a.b(c.d(e=1), f=g if h else i)\na.b(\n c=1).d(\n e=1)",
    "names of keywords on one path of two": "a.b(k=tuple(\n s(c) for c in a.k\n))\na.k(\n).b(l=any(c for c in d))",
    "names of super's keywords": "class A:\n  def f(self): super().f(a=1); return super().f(b,\n c=super().g(d=1))\n"
    "  def g(self): return (super()\n   .__f(a=1).g(b=1))",
    "restored variables": "def f(a, b):\n  [a for a in a for b in a]\n  lambda: b\n  return [(a, b) for a, b in b]",
    "a jump or a pop": "x = a and b or c and (d or e); (a or b) < c < (d and e)",
    "constants returned": "def f(a):\n  if a: return 1\n  try: return 2\n  finally: a()",
    "wide operands": "\n".join(f"x{i} = y{i}.z{i}(k{i}={i})" for i in range(300)),
    "long jumps": "while a:\n for b in c:\n  if d: continue\n" + "  e(f)\n" * 300 + "else: g",
    "returns from loops": "def f():\n  with p as f:\n    for l in f:\n      if l: return l\n  try:\n"
    "    for x in y: return x\n  finally: z",
    "dead handlers": "def f():\n  try:\n    return 1\n  except* a: b\n  try:\n    while 1: pass\n  finally: c",
}


@pytest.mark.parametrize("name", SOURCES)
def test_bytes_are_the_compilers(name):
    for code in walk_code(compile(SOURCES[name], name, "exec")):
        assert round_trip_problem(code) is None
        again = encode(decode(code))
        assert again.co_code == code.co_code
        assert again.co_exceptiontable == code.co_exceptiontable
        assert list(again.co_positions()) == list(code.co_positions())
        assert again.co_consts is code.co_consts


def test_a_difference_in_bytes_is_reported(monkeypatch):
    source = "with a:\n b"
    code = compile(source, "name", "exec")
    monkeypatch.setattr("framesmith_bytecode.corpus.round_trip.difference", lambda *_: None)
    for other, message in (
        (code.replace(co_code=code.co_code + code.co_code[-2:]), "co_code changed, from"),
        (code.replace(co_exceptiontable=b""), "the exception table changed, from Entry"),
        (compile(source.replace(" b", "\n b"), "name", "exec"), "the position of unit"),
        (compile(source.replace(" b", "  b"), "name", "exec"), "the position of unit"),
    ):
        monkeypatch.setattr("framesmith_bytecode.corpus.round_trip.encode", lambda _, other=other: other)
        assert message in round_trip_problem(code)


def test_a_backward_jump_keeps_the_prefix_that_only_its_own_length_needs():
    """256 units back with the prefix, 255 without: since 3.13 the compiler begins with the prefix."""
    kept = 0
    prefixed = bytes((OPCODES["EXTENDED_ARG"], 1, OPCODES["JUMP_BACKWARD"], 0))
    for end in ("", " -c\n"):
        for count in range(115, 128):
            code = compile("x\n" * 300 + "while a:\n" + " b = 1\n" * count + end, "name", "exec")
            assert encode(decode(code)).co_code == code.co_code
            kept += prefixed in code.co_code
    assert bool(kept) == TABLE.jumps_start_wide


def test_code_whose_line_table_was_cut_short_has_no_positions():
    code = compile("x = 1\ny = [x for x in z]", "name", "exec").replace(co_linetable=b"")
    bytecode = decode(code)
    assert {item.position for item in bytecode.instructions if isinstance(item, Instr)} == {None}
    assert encode(bytecode).co_code == code.co_code


BEYOND = write_exception_table([Entry(2, 3, 999, 0, False)])


def spoilt(**changes):
    """A function's code with some fields replaced."""
    code = compile("def f(a):\n  for b in a: a.c(b, 1)\n  return (lambda: d)(*a)", "name", "exec").co_consts[0]
    return code.replace(**{name: change(getattr(code, name)) for name, change in changes.items()})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"co_consts": lambda _: ()}, "f: an operand leads out of the constants, names or variables"),
        ({"co_names": lambda names: names[:-1]}, "f: an operand leads out"),
        ({"co_exceptiontable": lambda _: b"\x80"}, "f: exception table of 1 bytes ends inside an entry"),
        ({"co_exceptiontable": lambda _: BEYOND}, "f: something leads to unit 999, where no instruction begins"),
    ],
)
def test_spoilt_code_is_refused(changes, message):
    with pytest.raises(DecodeError, match=message):
        decode(spoilt(**changes))


def test_operands_that_no_instruction_has_are_refused():
    code = compile("a < b < c", "name", "eval")
    copy = code.co_code.index(bytes((OPCODES["COPY"], 2)))
    body = bytearray(code.co_code)
    body[copy + 1] = 0
    with pytest.raises(DecodeError, match=r"unit \d+: COPY takes an int at least 1, not 0"):
        decode(code.replace(co_code=bytes(body)))


def test_names_of_keywords_come_from_the_call_on_another_line():
    """A method's name on a line of its own must not be visited again before the call."""
    code = compile("a.b(c, k=1)", "name", "eval")
    bytecode = decode(code)
    at = next(i for i, item in enumerate(bytecode.instructions) if isinstance(item, Instr) and item.op == "CALL")
    call = bytecode.instructions[at]
    assert call.arg == CallShape(2, ("k",))
    bytecode.instructions[at] = call.replace(position=call.position._replace(lineno=7, end_lineno=7))
    again = encode(bytecode)
    lines = [position[0] for position in again.co_positions()]
    assert lines.index(7) < next(i for i, op in enumerate(again.co_code[::2]) if NAMES.get(op, "").startswith("CALL"))
    assert 1 not in lines[lines.index(7) : -1]


def test_a_region_that_ends_at_a_loops_end_leaves_out_its_exit():
    code = compile(SOURCES["a loop that only its exit leaves"], "name", "exec")
    bytecode = decode(code)
    ends = {region.end for region in bytecode.regions}
    exits = {item.arg for item in bytecode.instructions if isinstance(item, Instr) and item.op == "FOR_ITER"}
    order = [item for item in bytecode.instructions if isinstance(item, Label)]
    assert any(order[i] in ends and order[i + 1] in exits for i in range(len(order) - 1))
    assert encode(bytecode).co_exceptiontable == code.co_exceptiontable


def test_nested_code_keeps_what_it_shares():
    module = compile("f = lambda: 1\ng = lambda: 1", "name", "exec")
    one, other = [value for value in module.co_consts if isinstance(value, CodeType)]
    assert one.co_consts is other.co_consts
    one, other = [value for value in map_code(module).co_consts if isinstance(value, CodeType)]
    assert one.co_consts is other.co_consts
