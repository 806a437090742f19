"""Integers of many words in the emulator of PTX, against Python's."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

if importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("triton is not installed, or interprets", allow_module_level=True)

from hypothesis import given, settings
from hypothesis import strategies as st
from ptx.bodies import pair, run
from ptx.program import PtxError

THREADS = 64
KINDS = ("u32", "s32", "u64", "s64")
INSTRUCTIONS = [
    *("add.cc", "addc", "addc.cc", "sub.cc", "subc", "subc.cc"),
    *(f"{name}.{half}{cc}" for name, cc in (("mad", ".cc"), ("madc", ""), ("madc", ".cc")) for half in ("lo", "hi")),
]
#: Numbers at which signs and carries change.
EDGES = [sign * (1 << bits) + more for bits in (0, 16, 31, 32, 63) for sign in (1, -1) for more in (-1, 0, 1)]
WORDS = st.one_of(st.sampled_from(EDGES), st.integers(-(2**63), 2**63 - 1)).map(lambda v: v & (2**64 - 1))
#: Each thread has four words of 64 bits, of which the last one says whether a carry is there before, and two results.
LOADED = """
    mul.wide.u32 %rd3, %r1, 32;
    add.s64 %rd6, %rd1, %rd3;
    ld.global.v2.b64 {{%rd7, %rd8}}, [%rd6];
    ld.global.v2.b64 {{%rd9, %rd10}}, [%rd6+16];
    cvt.u32.u64 %r7, %rd7; cvt.u32.u64 %r8, %rd8; cvt.u32.u64 %r9, %rd9; cvt.u32.u64 %r10, %rd10;
    mul.wide.u32 %rd11, %r1, 16;
    add.s64 %rd12, %rd2, %rd11;
    mov.b64 %rd13, 0; mov.b32 %r13, 0; mov.b64 %rd14, 0;
"""
STORED = "cvt.u64.u32 %rd14, %r14; st.global.v2.b64 [%rd12], {{%rd13, %rd14}};"


def signed(value: int, kind: str) -> int:
    bits = int(kind[1:])
    value &= (1 << bits) - 1
    return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value


def expected(form: str, kind: str, a: int, b: int, c: int, flag: int) -> tuple[int, int]:
    """The result's bits, and the carry or borrow of a form that leaves one."""
    name, *ways = form.split(".")
    bits = int(kind[1:])
    every = (1 << bits) - 1
    flag = flag if name in ("addc", "subc", "madc") else 0
    if name.startswith("sub"):
        whole = (a & every) - (b & every) - flag
        return whole & every, int(whole < 0)
    if name.startswith("mad"):
        multiplied = signed(a, kind) * signed(b, kind)
        a, b = multiplied >> bits if "hi" in ways else multiplied, c
    whole = (a & every) + (b & every) + flag
    return whole & every, whole >> bits


def program(form: str, kind: str) -> str:
    """Sets the flag, does it, and takes down the result and what the flag is then."""
    wide = "64" in kind
    a, b, c, to = ("%rd7", "%rd8", "%rd9", "%rd13") if wide else ("%r7", "%r8", "%r9", "%r13")
    third = f", {c}" if form.startswith("mad") else ""
    negative = form.startswith("sub")
    before = "sub.cc.u32 %r12, 0, %r10;" if negative else "add.cc.u32 %r12, %r10, 0xffffffff;"
    after = "subc.u32 %r14, 0, 0; and.b32 %r14, %r14, 1;" if negative else "addc.u32 %r14, 0, 0;"
    widened = "" if wide else "cvt.u64.u32 %rd13, %r13;"
    return LOADED.format() + f"{before} {form}.{kind} {to}, {a}, {b}{third}; {after} {widened}" + STORED.format()


def words(values: list[int]) -> torch.Tensor:
    return torch.tensor([v - (1 << 64) if v >> 63 else v for v in values])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", INSTRUCTIONS)
@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(WORDS, WORDS, WORDS, st.integers(0, 1)), min_size=1, max_size=8))
def test_carries(form: str, kind: str, drawn: list[tuple[int, int, int, int]]) -> None:
    values = (drawn * THREADS)[:THREADS]
    x, y = words([word for row in values for word in row]), torch.zeros(2 * THREADS, dtype=torch.int64)
    run(program(form, kind), x, y)
    found = [v & (2**64 - 1) for v in y.tolist()]
    for k, row in enumerate(values):
        result, over = expected(form, kind, *row)
        assert found[2 * k] == result, row
        # Where the form leaves nothing, what was there before it is there still.
        assert found[2 * k + 1] == (over if form.endswith("cc") else row[3]), row


MULTIPLY = """
    cvt.u32.u64 %r16, %rd7; shr.u64 %rd15, %rd7, 32; cvt.u32.u64 %r17, %rd15;
    cvt.u32.u64 %r18, %rd8; shr.u64 %rd15, %rd8, 32; cvt.u32.u64 %r19, %rd15;
    mul.lo.u32 %r20, %r16, %r18;
    mul.hi.u32 %r21, %r16, %r18;
    mad.lo.cc.u32 %r21, %r16, %r19, %r21;
    madc.hi.u32 %r22, %r16, %r19, 0;
    mad.lo.cc.u32 %r21, %r17, %r18, %r21;
    madc.hi.cc.u32 %r22, %r17, %r18, %r22;
    addc.u32 %r23, 0, 0;
    mad.lo.cc.u32 %r22, %r17, %r19, %r22;
    madc.hi.u32 %r23, %r17, %r19, %r23;
    mov.b64 %rd13, {{%r20, %r21}}; mov.b64 %rd14, {{%r22, %r23}};
    st.global.v2.b64 [%rd12], {{%rd13, %rd14}};
"""


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=16))
def test_a_multiplication_to_128_bits(drawn: list[tuple[int, int]]) -> None:
    values = (drawn * THREADS)[:THREADS]
    x, y = words([word for a, b in values for word in (a, b, 0, 0)]), torch.zeros(2 * THREADS, dtype=torch.int64)
    run((LOADED + MULTIPLY).format(), x, y)
    found = [v & (2**64 - 1) for v in y.tolist()]
    assert [low + (high << 64) for low, high in zip(found[::2], found[1::2])] == [a * b for a, b in values]


def test_a_guard_leaves_result_and_flag_as_they_were() -> None:
    x, y = pair()
    run("add.cc.u32 %r7, -1, 1; mov.b32 %r8, 7; setp.lt.u32 %p1, %r1, 8; @%p1 add.cc.u32 %r8, 1, 1;"
        "addc.u32 %r9, %r8, 0; st.global.b32 [%rd5], %r9;", x, y)  # fmt: skip
    assert y.tolist() == [2] * 8 + [8] * 56


@pytest.mark.parametrize(
    "body, message",
    [
        ("addc.u32 %r7, %r1, 0;", "takes a carry that nothing has left"),
        ("sub.cc.u32 %r7, %r1, 1; addc.u32 %r7, %r1, 0;", "takes a carry that nothing has left"),
        ("add.cc.u32 %r7, %r1, 1; subc.u32 %r7, %r1, 0;", "takes a borrow that nothing has left"),
        ("mad.wide.cc.u32 %rd6, %r1, %r1, %rd1;", "unknown form"),
        ("add.cc.f32 %r7, %r1, %r1;", "unknown form"),
        ("mul.lo.cc.u32 %r7, %r1, %r1;", "unknown form"),
        ("mad.hi.sat.s32 %r7, %r1, %r1, %r1;", "saturation"),
    ],
)
def test_a_carry_without_meaning_is_an_error(body: str, message: str) -> None:
    with pytest.raises(PtxError, match=message):
        run(body, *pair())
