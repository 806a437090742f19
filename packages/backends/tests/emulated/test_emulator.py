"""The emulator of PTX itself: what it computes, and that it finds what is planted."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

if importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("triton is not installed, or interprets", allow_module_level=True)

from ptx.bodies import pair, run
from ptx.launching import code, launch
from ptx.program import PtxError
from ptx.threads import Failed

from framesmith_backends.render.triton.kernel import TritonKernel

REVERSED = """
    ld.global.b32 %r7, [%rd4];
    st.shared.b32 [%r6], %r7;
    {barrier}
    xor.b32 %r8, %r5, {other};
    add.s32 %r9, %r4, %r8;
    ld.shared.b32 %r10, [%r9];
    st.global.b32 [%rd5], %r10;
"""


def test_threads_turn_numbers_in_shared_memory() -> None:
    x, y = pair(128)
    run(REVERSED.format(barrier="bar.sync 0;", other=252), x, y, grid=2)
    assert y.tolist() == [*range(63, -1, -1), *range(127, 63, -1)]


def test_a_missing_barrier_is_a_race_and_one_of_warps_is_enough_within_them() -> None:
    with pytest.raises(Failed, match=r"line 30, block 0, thread 0: ld.shared.*data race: reads"):
        run(REVERSED.format(barrier="", other=252), *pair())
    with pytest.raises(Failed, match="data race"):
        run(REVERSED.format(barrier="bar.warp.sync -1;", other=252), *pair())
    x, y = pair()
    run(REVERSED.format(barrier="bar.warp.sync -1;", other=4), x, y)
    assert y[:4].tolist() == [1, 0, 3, 2]


def test_writing_over_what_others_still_read_is_a_race() -> None:
    again = REVERSED.format(barrier="bar.sync 0;", other=252) + "{barrier}st.shared.b32 [%r6], %r3;"
    run(again.replace("{barrier}", "bar.sync 0;"), *pair())
    x, y = torch.arange(100, 164, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    with pytest.raises(Failed, match="data race: writes"):
        run(again.replace("{barrier}", ""), x, y)


LATE = """
    ld.global.b32 %r7, [%rd1];
    add.s32 %r7, %r7, 1;
    setp.eq.b32 %p1, %r1, 0;
    @%p1 st.global.b32 [%rd1], %r7;
"""


def test_a_late_read_is_a_race_where_its_thread_uses_it() -> None:
    """One number counted up: all threads read it, and only the first one writes anything."""
    x, y = pair()
    run(LATE, x, y)
    assert x[0] == 1
    with pytest.raises(Failed, match=r"line 28, block 0, thread 0: .*data race: writes what another thread reads"):
        run(LATE + "st.global.b32 [%rd5], %r7;", *pair())


def test_shared_memory_has_to_be_written_before_and_has_an_end() -> None:
    with pytest.raises(Failed, match="never written"):
        run("ld.shared.b32 %r7, [%r6];", *pair())
    with pytest.raises(Failed, match=r"thread 32: .*out of bounds: byte 128 of shared memory, which has 128"):
        run("st.shared.b32 [%r6], %r1;", *pair(), shared=128)


@pytest.mark.parametrize(
    "offset, message", [(256, "byte 256 of p0, which has 256"), (-4, "byte -4 of p0"), (1 << 33, "out of")]
)
def test_an_access_outside_a_tensor_is_reported_with_its_byte(offset: int, message: str) -> None:
    with pytest.raises(Failed, match=f"out of bounds: .*{message}|{message} bounds"):
        run(f"add.s64 %rd6, %rd1, {offset}; ld.global.b32 %r7, [%rd6];", *pair())


def test_an_access_may_leave_a_view_no_more_than_its_memory() -> None:
    x, y = pair()
    with pytest.raises(Failed, match=r"thread 32: .*byte 128 of p1, which has 128"):
        run("st.global.b32 [%rd5], %r1;", x, y[:32])
    run("setp.lt.u32 %p1, %r1, 32; @%p1 st.global.b32 [%rd5], %r1;", x, y[:32])
    assert y.tolist() == [*range(32), *[0] * 32]


def test_an_address_of_32_bits_is_no_address() -> None:
    with pytest.raises(Failed, match="out of bounds"):
        run("cvt.u32.u64 %r7, %rd4; cvt.u64.u32 %rd6, %r7; ld.global.b32 %r8, [%rd6];", *pair())


def test_vectors_are_aligned_to_their_size() -> None:
    x, y = torch.arange(256, dtype=torch.int32), torch.zeros(256, dtype=torch.int32)
    wide = "shl.b32 %r7, %r1, 4; cvt.u64.u32 %rd6, %r7; add.s64 %rd7, %rd1, %rd6; add.s64 %rd8, %rd2, %rd6;"
    wide += "ld.global.v4.b32 {{%r8, %r9, %r10, %r11}}, [%rd7+{0}]; st.global.v4.b32 [%rd8], {{%r11, %r10, %r9, %r8}};"
    run(wide.format(0), x, y)
    assert y.view(64, 4).flip(1).equal(x.view(64, 4))
    with pytest.raises(Failed, match="misaligned address for 16 bytes"):
        run(wide.format(8), x, y)


def test_blocks_may_write_the_same_and_nothing_else_at_one_address() -> None:
    x, y = pair(128)
    run("setp.eq.b32 %p1, %r1, 0; mov.b32 %r7, 5; @%p1 st.global.b32 [%rd2], %r7;", x, y, grid=2)
    assert y[0] == 5
    with pytest.raises(Failed, match="data race: threads write different values"):
        run("setp.eq.b32 %p1, %r1, 0; @%p1 st.global.b32 [%rd2], %r2;", *pair(128), grid=2)
    with pytest.raises(Failed, match=r"block 1, thread 5: .*data race"):
        run("ld.global.b32 %r7, [%rd1]; setp.eq.b32 %p1, %r3, 69; @%p1 st.global.b32 [%rd1], %r7;", *pair(128), grid=2)


def test_atomic_sums_are_no_race_but_beside_plain_reads() -> None:
    x, y = pair(128)
    run("atom.global.gpu.relaxed.add.u32 %r7, [%rd2], 1; st.global.b32 [%rd4], %r7;", x, y, grid=2)
    assert y[0] == 128 and sorted(x.tolist()) == [*range(128)]
    with pytest.raises(Failed, match="data race"):
        run("red.global.gpu.relaxed.add.u32 [%rd2], 1; ld.global.b32 %r7, [%rd2];", *pair(128), grid=2)


def test_copies_land_when_they_are_waited_for() -> None:
    body = """
        cp.async.ca.shared.global [%r6], [%rd4], 4;
        cp.async.commit_group;
        {wait}
        bar.sync 0;
        xor.b32 %r8, %r5, 252;
        add.s32 %r9, %r4, %r8;
        ld.shared.b32 %r10, [%r9];
        st.global.b32 [%rd5], %r10;
    """
    x, y = pair()
    run(body.format(wait="cp.async.wait_group 0;"), x, y)
    assert y.tolist() == [*range(63, -1, -1)]
    with pytest.raises(Failed, match="reads what is being copied"):
        run(body.format(wait="cp.async.wait_group 1;"), *pair())


def test_a_parameter_may_be_chosen_by_its_address() -> None:
    one, other = pair()
    body = """
    setp.lt.u32 %p1, %r1, 32;
    mov.b64 %rd6, kernel_0;
    mov.b64 %rd7, kernel_1;
    selp.b64 %rd8, %rd6, %rd7, %p1;
    ld.param.b64 %rd9, [%rd8];
    add.s64 %rd10, %rd9, %rd3;
    st.global.b32 [%rd10], %r1;
    """
    run(body, one.zero_(), other)
    assert one[:32].tolist() == [*range(32)] and other[32:].tolist() == [*range(32, 64)]
    assert not one[32:].any() and not other[:32].any()
    with pytest.raises(PtxError, match="beyond a parameter"):
        run(body.replace("selp.b64 %rd8, %rd6, %rd7, %p1", "add.s64 %rd8, %rd7, 4"), one, other)


def test_threads_that_part_meet_again() -> None:
    x, y = pair()
    run(
        """
        mov.b32 %r7, 0;
        and.b32 %r8, %r1, 7;
    again:
        setp.eq.b32 %p1, %r8, 0;
        @%p1 bra done;
        add.s32 %r7, %r7, %r8;
        sub.s32 %r8, %r8, 1;
        bra.uni again;
    done:
        shfl.sync.bfly.b32 %r9, %r7, 1, 31, -1;
        st.global.b32 [%rd5], %r9;
        """,
        x, y,
    )  # fmt: skip
    assert y[:8].tolist() == [1, 0, 6, 3, 15, 10, 28, 21]


def test_instructions_of_a_whole_warp_wait_for_all_lanes() -> None:
    """Threads that take a way around, which lies further down, come back to where the others have got to."""
    x, y = pair()
    run(
        """
        mov.b32 %r7, %r1;
        and.b32 %r8, %r1, 1;
        setp.eq.b32 %p1, %r8, 0;
        @%p1 bra around;
    back:
        shfl.sync.bfly.b32 %r9, %r7, 1, 31, -1;
        st.global.b32 [%rd5], %r9;
        ret;
    around:
        add.s32 %r7, %r7, 100;
        bra.uni back;
        """,
        x,
        y,
    )
    assert y[:4].tolist() == [1, 100, 3, 102]


def test_threads_of_a_block_wait_at_one_barrier() -> None:
    body = "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra one;\nbar.sync 0;\nbra.uni end;\none:\nbar.sync 0;\nend:\nret;"
    with pytest.raises(Failed, match="different barriers"):
        run(body, *pair())


def test_unknown_instructions_are_named() -> None:
    with pytest.raises(PtxError, match=r"line 24: wgmma.fence.sync.aligned: unknown instruction"):
        run("wgmma.fence.sync.aligned;", *pair())


def triton_kernel(source: str, pointers: int, warps: int = 4, numbers: tuple[object, ...] = ()) -> TritonKernel:
    text = "def kernel(" + ", ".join(
        [*(f"p{k}" for k in range(pointers)), *(f"n{k}: tl.int64" for k in range(len(numbers)))]
    )
    return TritonKernel(
        "kernel", f"{text}):\n{source}", 1, 1, warps, ("*fp32",) * pointers, numbers, (0,) if numbers else ()
    )


def test_a_hint_that_does_not_hold_is_a_misaligned_access() -> None:
    """An argument declared divisible by 16 lets Triton read whole vectors."""
    from framesmith_backends.ir.symbolic.size import Symbol

    source = "    i = tl.arange(0, 1024)\n    tl.store(p1 + i, tl.load(p0 + n0 + i))\n"
    kernel = triton_kernel(source, 2, numbers=(Symbol("n", 1, 32),))
    x, y = torch.rand(1100), torch.zeros(1024)
    for aligned, number in ((True, 32), (False, 31)):
        launch(*code(kernel, 80, aligned), 1, [x, y], [number])
        assert y.equal(x[number : number + 1024])
    with pytest.raises(Failed, match="misaligned address for 16 bytes"):
        launch(*code(kernel, 80, True), 1, [x, y], [31])
    with pytest.raises(Failed, match="out of bounds: byte 4400 of p0"):
        launch(*code(kernel, 80, True), 1, [x, y], [80])


def test_a_store_over_what_other_programs_read_is_found() -> None:
    source = "    i = tl.program_id(0) * 128 + tl.arange(0, 128)\n    tl.store(p0 + i, tl.load(p0 + i + 1))\n"
    program, shared = code(triton_kernel(source, 1), 80, False)
    with pytest.raises(Failed, match="data race"):
        launch(program, shared, 2, [torch.rand(257)])


def test_an_assertion_that_fails_ends_the_program() -> None:
    kernel = triton_kernel('    tl.device_assert(tl.load(p0) < 1.0, "too large")\n    tl.store(p1, tl.load(p0))\n', 2)
    kernel = TritonKernel(**{name: getattr(kernel, name) for name in kernel.__slots__} | {"has_checks": True})
    x = torch.tensor([0.5, 2.0])
    launch(*code(kernel, 80, False), 1, [x[:1], torch.zeros(1)])
    with pytest.raises(Failed, match="assertion"):
        launch(*code(kernel, 80, False), 1, [x[1:].clone(), torch.zeros(1)])
