"""Random instruction lists: code accepted by `encode` never crashes the interpreter.

Other lists are refused with `BytecodeError`. Functions run in a child process (see fuzz_execute.py).
"""

from __future__ import annotations

import random
from dataclasses import replace
from types import CodeType

import pytest
from fuzz_execute import execute, run
from fuzz_programs import functions, stand_in, trusts_its_caller

from framesmith_bytecode import (
    OPS,
    Bytecode,
    BytecodeError,
    CallShape,
    Instr,
    InterpolationShape,
    Label,
    Region,
    SuperShape,
    decode,
    encode,
    format_bytecode,
)
from framesmith_bytecode.analyses.walk import stack_states
from framesmith_bytecode.corpus.compare import difference
from framesmith_bytecode.model.ops import pops, pushes, required_depth

NAMES = ["a", "b", "c", "d", "e"]
OP_NAMES = sorted(OPS)
WILD = [None, -1, 0, 1, 2, 300, 70000, "a", "zz", b"x", 1.5, True, (1, 2), (-1, 0), frozenset(), frozenset({"closure"}),
        CallShape(1), CallShape(0, ("k",)), SuperShape("a"), [], object()]  # fmt: skip
CODES = functions()
NESTED = [code for code in CODES if code.co_flags & 3 == 3 and not trusts_its_caller(code)]
CONSTANTS = [None, 1, 2.5, "s", (1, "t"), -0.0, (), ("k",), ("k", 1), True]


def operand(chance, op, labels, names=NAMES):
    row = OPS[op]
    if chance.random() < 0.01:
        return chance.choice(WILD)
    if row.choices:
        return chance.choice(row.choices)
    return {
        "none": lambda: None,
        "const": lambda: chance.choice(NESTED) if chance.random() < 0.1 else chance.choice(CONSTANTS),
        "local": lambda: chance.choice(names),
        "deref": lambda: chance.choice(names),
        "name": lambda: chance.choice(["n", "print", "append", "x", "ValueError", "len"]),
        "label": lambda: chance.choice(labels),
        "count": lambda: chance.choice([1, 2, 2, 3, chance.randrange(6)]),
        "index": lambda: chance.choice([None, 0, 1, 2, 3]),
        "bool": lambda: chance.random() < 0.5,
        "call": lambda: CallShape(chance.randrange(3), ("k",) if chance.random() < 0.1 else ()),
        "super": lambda: SuperShape("x", chance.random() < 0.5),
        "unpack_ex": lambda: (chance.randrange(3), chance.randrange(3)),
        "function": lambda: frozenset(
            chance.sample(
                ["defaults", "kwdefaults", "annotations", "annotate", "closure"], chance.choice([0, 0, 0, 1, 2])
            )
        ),
        "interpolation": lambda: InterpolationShape(chance.choice(["", "repr"]), chance.random() < 0.3),
    }[row.operand]()


def shapeless(chance):
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
    return assembled(chance, items, regions_among(chance, labels))


def regions_among(chance, labels):
    return [
        Region(*chance.choices(labels, k=3), depth=chance.choice([None, 0, 1]), lasti=chance.random() < 0.5)
        for _ in range(chance.choice([0, 0, 0, 1, 2]))
    ]


def assembled(chance, items, regions):
    flags = chance.choice([3, 3, 3, 3, 0x23, 0x83, 0x203, 0])
    if flags & 0x2A0 and chance.random() < 0.9:
        items = [Instr("RETURN_GENERATOR"), Instr("POP_TOP"), Instr("RESUME", 0), *items]
    return Bytecode(
        "fuzz", items, regions, argcount=1, flags=flags, varnames=NAMES[:3], cellvars=["c", "d"], freevars=["e"]
    )


GIVE_BACK = [Instr("LOAD_CONST", 1), Instr("RETURN_VALUE")]
ENDINGS = [
    [Instr("RERAISE", 0)],
    [Instr("RERAISE", 1)],
    [Instr("PUSH_EXC_INFO"), Instr("POP_TOP"), Instr("POP_EXCEPT"), *GIVE_BACK],
    [Instr("POP_EXCEPT"), *GIVE_BACK],
]
COMMON = [
    "LOAD_CONST", "LOAD_FAST", "PUSH_NULL", "LOAD_CLOSURE", "COPY", "SWAP", "GET_ITER", "BUILD_TUPLE", "BUILD_LIST",
    "BUILD_MAP", "BUILD_SET", "LIST_APPEND", "CALL", "STORE_FAST", "MAKE_FUNCTION",
]  # fmt: skip


def balanced(chance):
    """A list with consistent stack depths; only kinds of slots may be wrong."""
    items, depth, open_labels, handlers = [], 0, [], []
    for _ in range(chance.randrange(4, 40)):
        for label, at in list(open_labels):
            if at == depth and chance.random() < 0.4:
                items.append(label)
                open_labels.remove((label, at))
        op = chance.choice(OP_NAMES)
        if chance.random() < 0.4:
            op = chance.choice(COMMON)
        label = Label()
        try:
            arg = operand(chance, op, [label])
            instr = Instr(op, arg)
        except ValueError:
            continue
        flow = OPS[op].flow
        if flow in ("return", "raise", "jump") or depth < required_depth(op, arg):
            continue
        if flow == "branch":
            open_labels.append((label, depth - pops(op, None) + OPS[op].jump_pushes))
        if chance.random() < 0.08:
            start, end, handler = Label(), Label(), Label()
            lasti = chance.random() < 0.5
            kept = chance.randrange(depth + 1)
            items += [start, instr, end]
            handlers.append((Region(start, end, handler, kept, lasti), kept + 1 + lasti))
        else:
            items.append(instr)
        depth += pushes(op, arg) - pops(op, arg)
    items += [Instr("LOAD_CONST", None), Instr("RETURN_VALUE")]
    for label, at in open_labels:
        items += [label, *[Instr("LOAD_CONST", None)] * (at == 0), Instr("RETURN_VALUE")]
    for region, _ in handlers:
        items += [region.handler, *chance.choice(ENDINGS)]
    return assembled(chance, items, [region for region, _ in handlers])


def mutated(chance):
    """A real function with a few items dropped, doubled, exchanged, inserted, or with other operands or regions."""
    bytecode = decode(chance.choice(CODES))
    items, regions = bytecode.instructions, bytecode.regions
    for i, item in enumerate(items):
        if isinstance(item, Instr) and isinstance(item.arg, CodeType) and trusts_its_caller(item.arg):
            items[i] = item.replace(arg=stand_in(len(item.arg.co_freevars)))
    labels = [item for item in items if isinstance(item, Label)] or [Label()]
    names = [*bytecode.varnames, *bytecode.cellvars, *bytecode.freevars] or NAMES
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        i, j = chance.randrange(len(items)), chance.randrange(len(items))
        change = chance.randrange(8)
        if change == 0 and len(items) > 1:
            items.pop(i)
        elif change == 1 and isinstance(items[i], Instr):
            items.insert(j, items[i])
        elif change == 2:
            items[i], items[j] = items[j], items[i]
        elif change == 3 and i + 1 < len(items):
            items[i], items[i + 1] = items[i + 1], items[i]
        elif change == 4 and regions:
            k = chance.randrange(len(regions))
            part = chance.choice(["start", "end", "handler", "depth", "lasti"])
            value = {"depth": chance.randrange(4), "lasti": not regions[k].lasti}.get(part, chance.choice(labels))
            regions[k] = replace(regions[k], **{part: value})
        elif change == 5 and isinstance(items[i], Instr):
            try:
                items[i] = items[i].replace(arg=operand(chance, items[i].op, labels, names))
            except ValueError:
                return None
        else:
            op = chance.choice(OP_NAMES)
            try:
                items.insert(i, Instr(op, operand(chance, op, labels, names)))
            except ValueError:
                return None
        if len(items) < 2:
            return None
    return bytecode


GENERATORS = {"shapeless": shapeless, "balanced": balanced, "mutated": mutated}


def attempt(chance, generate):
    """Refuse or run one function."""
    bytecode = generate(chance)
    if bytecode is None:
        return "refused"
    try:
        code = encode(bytecode)
    except BytecodeError:
        return "refused"
    assert isinstance(code, CodeType)
    again = decode(code)
    if None not in stack_states(again).before:  # unreachable items may change, for example run off the end
        assert difference(again, decode(encode(again))) is None
    if chance.random() < 0.05:
        assert format_bytecode(again)
    return execute(code, chance)


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("kind", "share"), [("shapeless", 0.2), ("balanced", 0.4), ("mutated", 0.4)])
def test_what_is_accepted_runs_without_a_crash(kind, share, long_run):
    def one(seed):
        return attempt(random.Random(f"{kind} {seed}"), GENERATORS[kind])

    count = int(share * (1_000_000 if long_run else 10_000))
    outcomes, crashes, killed = run(one, range(count))
    print(f"{kind}: {count:,} lists: {dict(outcomes)}, killed {killed}")
    assert not crashes, f"run test_fuzz.py's {kind} generator with these seeds: {crashes}"
    assert outcomes["refused"] and outcomes["returned"] and outcomes["raised"]
