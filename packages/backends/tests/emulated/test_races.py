"""Races that the emulator of PTX has to find, and what is none: lanes that meet, and writes of the same bits."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

if importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("triton is not installed, or interprets", allow_module_level=True)

from ptx.bodies import pair, run
from ptx.program import PtxError
from ptx.threads import Failed

#: The first thread of those that `{whom}` says writes over what all of its warp have read.
OVER = """
    ld.{space} %r7, [{address}];
    {sync}
    and.b32 %r8, %r1, {whom};
    setp.eq.b32 %p1, %r8, 0;
    add.s32 %r9, %r7, 1;
    @%p1 st.{space} [{address}], %r9;
    st.global.b32 [%rd5], %r7;
"""
SYNCS = {
    "bar": "bar.warp.sync -1;",
    "shfl": "shfl.sync.bfly.b32 %r10, %r7, 1, 31, -1;",
    "vote": "setp.eq.b32 %p2, %r7, 0; vote.sync.any.pred %p3, %p2, -1;",
    "redux": "redux.sync.add.s32 %r10, %r7, 0xffffffff;",
}
#: The address of the warp's first word, in shared and in global memory.
OF_WARP = "and.b32 %r11, %r1, 32; mul.wide.u32 %rd6, %r11, 4; add.s64 %rd7, %rd1, %rd6; shl.b32 %r12, %r11, 2;"
OF_WARP += "add.s32 %r13, %r4, %r12; st.shared.b32 [%r6], %r1; bar.sync 0;"
ADDRESSES = {"shared.b32": "%r13", "global.b32": "%rd7"}


@pytest.mark.parametrize("space", ADDRESSES)
@pytest.mark.parametrize("kind", SYNCS)
def test_lanes_that_came_together_have_read(kind: str, space: str) -> None:
    body = OF_WARP + OVER
    x, y = pair()
    run(body.format(space=space, address=ADDRESSES[space], sync=SYNCS[kind], whom=31), x, y)
    assert y[:32].tolist() == [0] * 32 and y[32:].tolist() == [32] * 32
    with pytest.raises(Failed, match="data race: writes"):
        run(body.format(space=space, address=ADDRESSES[space], sync="", whom=31), *pair())


@pytest.mark.parametrize("kind", SYNCS)
def test_those_of_other_warps_may_still_read(kind: str) -> None:
    first = "st.shared.b32 [%r6], %r1; bar.sync 0;"
    for space, address in (("shared.b32", "%r4"), ("global.b32", "%rd1")):
        with pytest.raises(Failed, match="data race: writes"):
            run(first + OVER.format(space=space, address=address, sync=SYNCS[kind], whom=63), *pair())
        run(first + OVER.format(space=space, address=address, sync=f"{SYNCS[kind]} bar.sync 0;", whom=63), *pair())


NEIGHBOUR = """
    st.shared.b32 [%r6], %r1;
    mov.b32 %r7, %r1;
    {sync}
    xor.b32 %r8, %r5, 4;
    add.s32 %r9, %r4, %r8;
    ld.shared.b32 %r10, [%r9];
    st.global.b32 [%rd5], %r10;
"""


def test_only_a_barrier_of_the_warp_orders_its_lanes_writes() -> None:
    x, y = pair()
    run(NEIGHBOUR.format(sync=SYNCS["bar"]), x, y)
    assert y[:4].tolist() == [1, 0, 3, 2]
    for kind in ("shfl", "vote", "redux"):
        with pytest.raises(Failed, match="data race: reads what another thread wrote"):
            run(NEIGHBOUR.format(sync=SYNCS[kind]), *pair())


def test_a_barrier_is_of_the_lanes_that_its_mask_names() -> None:
    halves = "and.b32 %r11, %r1, 16; mov.b32 %r12, 0xffff; shl.b32 %r13, %r12, %r11; bar.warp.sync %r13;"
    x, y = pair()
    run(NEIGHBOUR.format(sync=halves), x, y)
    assert y[:4].tolist() == [1, 0, 3, 2]
    across = NEIGHBOUR.replace("%r5, 4", "%r5, 64")
    with pytest.raises(Failed, match="data race: reads what another thread wrote"):
        run(across.format(sync=halves), *pair())
    # Order is transitive: barriers of quarters, and then of pairs of lanes at a distance of 8.
    quarters = "and.b32 %r11, %r1, 24; mov.b32 %r12, 0xff; shl.b32 %r13, %r12, %r11; bar.warp.sync %r13;"
    pairs = "and.b32 %r14, %r1, 23; mov.b32 %r15, 0x101; shl.b32 %r16, %r15, %r14; bar.warp.sync %r16;"
    crossed = NEIGHBOUR.replace("%r5, 4", "%r5, 36")
    run(crossed.format(sync=quarters + pairs), x, y)
    assert y[:4].tolist() == [9, 8, 11, 10]
    for sync in (quarters, pairs):
        with pytest.raises(Failed, match="data race: reads what another thread wrote"):
            run(crossed.format(sync=sync), *pair())


PARTED = """
    mov.b32 %r7, %r1;
    and.b32 %r8, %r1, 16;
    setp.eq.b32 %p1, %r8, 0;
    @%p1 bra low;
    {high}
    bra.uni end;
low:
    shfl.sync.bfly.b32 %r7, %r1, 1, 31, {mask};
end:
    st.global.b32 [%rd5], %r7;
"""


def test_those_that_take_part_are_waited_for_and_no_others() -> None:
    x, y = pair()
    run(PARTED.format(high="", mask="0xffff"), x, y)
    assert y[:18].tolist() == [1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14, 16, 17]
    run(PARTED.format(high="", mask=-1), x, y)  # who has ended is not waited for
    with pytest.raises(Failed, match="a lane that its mask does not name"):
        run(PARTED.format(high="", mask="0xff"), *pair())
    with pytest.raises(Failed, match="lanes meet with different masks"):
        run("or.b32 %r7, %r1, 0xffffffe0; setp.eq.b32 %p1, %r1, 0; selp.b32 %r8, -1, 3, %p1;"
            "setp.gt.u32 %p2, %r1, 1; @%p2 ret; bar.warp.sync %r8;", *pair())  # fmt: skip
    with pytest.raises(Failed, match="a shuffle from a thread that is not there"):
        run(PARTED.replace("%r1, 1,", "%r1, 16,").format(high="", mask="0xffff"), *pair())
    with pytest.raises(PtxError, match="under a predicate"):
        run("setp.eq.b32 %p1, %r1, 0; @%p1 bar.warp.sync -1;", *pair())


def test_a_barrier_of_the_block_is_not_passed_by_those_that_wait_for_their_warp() -> None:
    with pytest.raises(Failed, match="waits for others of its warp, which never come"):
        run(PARTED.format(high="bar.sync 0;", mask=-1), *pair())


TWICE = """
    st.{space}.b32 [{address}], {value};
    ld.{space}.b32 %r8, [{address}];
    st.global.b32 [%rd5], %r8;
"""


@pytest.mark.parametrize("space, address", [("shared", "%r4"), ("global", "%rd1")])
def test_threads_may_write_the_same_bits_and_read_their_own(space: str, address: str) -> None:
    five = "mov.b32 %r7, 5;"
    x, y = pair()
    run(five + TWICE.format(space=space, address=address, value="%r7"), x, y)
    assert y.tolist() == [5] * 64
    # One by one, so that each finds what the one before has written.
    turns = "setp.lt.u32 %p1, %r1, 32; @%p1 bra low;" + TWICE + "bra.uni end;\nlow:" + TWICE + "end:\n"
    run(five + turns.format(space=space, address=address, value="%r7"), x, y)
    with pytest.raises(Failed, match="data race"):
        run("shr.u32 %r7, %r1, 5;" + turns.format(space=space, address=address, value="%r7"), *pair())
    # Who has not written it reads what may not be there yet; and what was there before, another may have changed.
    some = "setp.ne.b32 %p1, %r1, 33; @%p1 " + TWICE.lstrip()
    with pytest.raises(Failed, match=r"thread 33: .*data race: reads what another thread wrote"):
        run(five + some.format(space=space, address=address, value="%r7"), *pair())
    with pytest.raises(Failed, match="data race"):
        run(f"{five} st.{space}.b32 [{address}], %r7; setp.eq.b32 %p1, %r1, 63; mov.b32 %r9, 6;"
            f"bar.warp.sync -1; @%p1 st.{space}.b32 [{address}], %r9;", *pair())  # fmt: skip


def test_blocks_may_write_the_same_bits_and_read_their_own() -> None:
    x, y = pair(128)
    run("mov.b32 %r7, 5;" + TWICE.format(space="global", address="%rd1", value="%r7"), x, y, grid=2)
    assert y.tolist() == [5] * 128
    first = "setp.lt.u32 %p2, %r3, {count}; mov.b32 %r7, 5; @%p2 "
    with pytest.raises(Failed, match=r"block 1, thread 0: .*data race: reads what another thread wrote"):
        body = (first + TWICE.lstrip()).format(count=64, space="global", address="%rd1", value="%r7")
        run(body, *pair(128), grid=2)
    with pytest.raises(Failed, match="data race: writes"):  # what was there before may be read after the write
        run("ld.global.b32 %r9, [%rd1]; mov.b32 %r7, 5;" + TWICE.format(space="global", address="%rd1", value="%r7"),
            torch.full((128,), 7, dtype=torch.int32), pair(128)[1], grid=2)  # fmt: skip


def test_the_same_bits_by_other_accesses_are_a_race() -> None:
    """A word and one half of it: no rule says what becomes of these."""
    word = "mov.b32 %r7, 0; mov.b16 %rs1, 0; setp.lt.u32 %p1, %r1, 32;"
    x, y = pair()
    run(word + "@%p1 st.global.b32 [%rd1], %r7; @!%p1 st.global.b32 [%rd1], %r7;", x, y)
    with pytest.raises(Failed, match="data race: writes"):
        run(word + "@%p1 st.global.b32 [%rd1], %r7; @!%p1 st.global.b16 [%rd1], %rs1;", *pair())
