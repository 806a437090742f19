"""Random instruction lists: everything is either refused with our own error, or encodes and decodes without a crash.

What passes is made into a function but not run: an instruction list can be well formed and still add a list to a set.
"""

from __future__ import annotations

import random
from types import CodeType, FunctionType

import pytest

from framesmith_bytecode import (
    OPS,
    Bytecode,
    BytecodeError,
    CallShape,
    Instr,
    Label,
    Region,
    SuperShape,
    decode,
    encode,
    format_bytecode,
    verify,
)
from framesmith_bytecode.compare import difference

NAMES = ["a", "b", "c", "d", "e"]
OP_NAMES = sorted(OPS)
WILD = [None, -1, 0, 1, 2, 300, 70000, "a", "zz", b"x", 1.5, True, (1, 2), (-1, 0), frozenset(), frozenset({"closure"}),
        CallShape(1), CallShape(0, ("k",)), SuperShape("a"), [], object()]  # fmt: skip


def operand(chance, op, labels):
    row = OPS[op]
    if chance.random() < 0.02:
        return chance.choice(WILD)
    if row.choices:
        return chance.choice(row.choices)
    return {
        "none": lambda: None,
        "const": lambda: chance.choice([None, 1, 2.5, "s", (1, "t"), -0.0]),
        "local": lambda: chance.choice(NAMES[:3]),
        "deref": lambda: chance.choice(NAMES[2:]),
        "name": lambda: chance.choice(["n", "print", "append"]),
        "label": lambda: chance.choice(labels),
        "count": lambda: chance.choice([1, 2, 2, 3, chance.randrange(6)]),
        "index": lambda: chance.choice([None, 0, 1, 2]),
        "bool": lambda: chance.random() < 0.5,
        "call": lambda: CallShape(chance.randrange(3), ("k",) if chance.random() < 0.1 else ()),
        "super": lambda: SuperShape("x", chance.random() < 0.5),
        "unpack_ex": lambda: (chance.randrange(3), chance.randrange(3)),
        "function": lambda: frozenset(
            chance.sample(["defaults", "kwdefaults", "annotations", "closure"], chance.randrange(3))
        ),
    }[row.operand]()


def random_function(chance):
    """A list of random items, most of them plausible, or None where construction refused one."""
    labels = [Label() for _ in range(4)]
    items = list(labels[: chance.randrange(5)])
    easy = ["LOAD_CONST", "LOAD_FAST", "STORE_FAST", "POP_TOP", "LOAD_DEREF", "BINARY_OP", "NOP", "PUSH_NULL"]
    for _ in range(chance.randrange(14)):
        op = chance.choice(easy if chance.random() < 0.6 else OP_NAMES)
        try:
            items.append(Instr(op, operand(chance, op, labels)))
        except ValueError:
            return None
    chance.shuffle(items)
    items += [Instr("LOAD_CONST", None), Instr("RETURN_VALUE")][chance.random() < 0.1 :]
    regions = [
        Region(*chance.choices(labels, k=3), depth=chance.choice([None, 0, 1]), lasti=chance.random() < 0.5)
        for _ in range(chance.choice([0, 0, 0, 1, 2]))
    ]
    flags = chance.choice([3, 3, 3, 3, 0x23, 0x83, 0])
    return Bytecode(
        "fuzz", items, regions, argcount=1, flags=flags, varnames=NAMES[:3], cellvars=["c", "d"], freevars=["e"]
    )


def cell():
    value = 1
    return (lambda: value).__closure__


def try_one(chance):
    """Where the function got to: refused when built, verified, encoded; or sound."""
    bytecode = random_function(chance)
    if bytecode is None:
        return "built"
    try:
        verify(bytecode)
    except BytecodeError:
        return "verified"
    try:
        code = encode(bytecode)
    except BytecodeError:
        return "encoded"
    assert isinstance(code, CodeType)
    again = decode(code)
    assert difference(again, decode(encode(again))) is None
    assert FunctionType(code, {}, "fuzz", (1,), cell()).__code__ is code
    assert format_bytecode(again)
    return "sound"


def test_random_instruction_lists(long_run):
    chance = random.Random(20)
    seen = {"built": 0, "verified": 0, "encoded": 0, "sound": 0}
    for _ in range(1_000_000 if long_run else 8_000):
        seen[try_one(chance)] += 1
    print(seen)
    assert seen["built"] and seen["verified"] and seen["sound"]


def test_mutated_real_functions(long_run):
    """A real function with items dropped, doubled or exchanged is refused or survives encoding."""

    def real(a, *rest, key=None):
        total = 0
        try:
            for item in rest:
                with key as value:
                    total += item if value else a
        except ValueError as error:
            return f"{error!r}"
        return [x for x in rest if x], lambda: total

    chance = random.Random(7)
    outcomes = set()
    for _ in range(200_000 if long_run else 1_500):
        bytecode = decode(real.__code__)
        items = bytecode.instructions
        for _ in range(chance.randint(1, 3)):
            i, j = chance.randrange(len(items)), chance.randrange(len(items))
            chance.choice([lambda: items.pop(i), lambda: items.insert(j, items[i]), lambda: swap(items, i, j)])()
            j = min(j, len(items) - 1)
        try:
            verify(bytecode)
            decode(encode(bytecode))
            outcomes.add("sound")
        except BytecodeError:
            outcomes.add("refused")
    assert outcomes == {"sound", "refused"}


def swap(items, i, j):
    items[i], items[j] = items[j], items[i]


@pytest.mark.parametrize("seed", range(20))
def test_encode_alone_never_crashes(seed):
    """Also without the verifier, encode either refuses or makes a code object that decodes."""
    chance = random.Random(seed)
    for _ in range(60):
        bytecode = random_function(chance)
        if bytecode is not None:
            try:
                decode(encode(bytecode))
            except (BytecodeError, ValueError):
                continue
