"""Programs for tests of the emulator: bodies of kernels of 64 threads over two tensors of 32 bits.

`%r1` is the thread, `%r2` the block, `%r3` the thread of the grid; `%rd4` and `%rd5` are the addresses of its elements,
`%r6` that of its word in shared memory, `%r5` the word's offset in `%r4`.
"""

from __future__ import annotations

import torch
from ptx.launching import launch
from ptx.program import parse

HEAD = """
.version 8.7
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 memory[];
.visible .entry kernel(.param .u64 .ptr .global .align 1 kernel_0, .param .u64 .ptr .global .align 1 kernel_1)
.reqntid 64
{
    .reg .pred %p<8>;
    .reg .b16 %rs<8>;
    .reg .b32 %r<40>;
    .reg .b64 %rd<20>;
    ld.param.b64 %rd1, [kernel_0];
    ld.param.b64 %rd2, [kernel_1];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mad.lo.s32 %r3, %r2, 64, %r1;
    mul.wide.u32 %rd3, %r3, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    mov.b32 %r4, memory;
    shl.b32 %r5, %r1, 2;
    add.s32 %r6, %r4, %r5;
"""


def run(body: str, *tensors: torch.Tensor, grid: int = 1, shared: int = 256) -> None:
    launch(parse(HEAD + body + "\nret;\n}\n"), shared, grid, tensors)


def pair(size: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(size, dtype=torch.int32), torch.zeros(size, dtype=torch.int32)
