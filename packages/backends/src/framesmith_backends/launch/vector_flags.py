"""Machine code of Triton kernels without a fault of LLVM's: promises about lanes of vectors that nobody reads.

Where LLVM puts numbers side by side (`SLPVectorizer`) that are computed by different operations, it computes both
operations for all of them and picks: `pid & 31` and `lane << 2` become `<pid, lane> << <31, 2>` beside an `and`. The
shift keeps the promise that nothing is lost beyond 32 bits (`nuw`), which holds for the lane that is picked alone.
The code generator for NVIDIA's GPUs then packs both lanes into 64 bits, and what the first lane promised not to lose
ends up in the second one: a wrong number, or an address beyond a tensor. Met with Triton 3.6, in the backward pass of
T5. So promises about whole vectors are taken back, and the code made again of what is left, which is as fast.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from framesmith_backends.render.triton.kernel import TritonKernel

#: Stands for what is done here wherever code is kept.
GENERATION = 1
_PROMISES = re.compile(
    r"(= (?:add|sub|mul|shl|or|lshr|ashr|udiv|sdiv|trunc|zext|uitofp) )"
    r"(?:(?:nuw|nsw|exact|disjoint|nneg) )+(?=<\d+ x )"
)


@dataclass(frozen=True, slots=True)
class Code:
    """What Triton made of a kernel: texts and machine code by stage (`ptx`, `cubin`, ...), and what a launch needs."""

    asm: dict[str, Any]
    metadata: Any


def without_promises(text: str) -> str:
    """LLVM's code with no promise about a vector."""
    return _PROMISES.sub(r"\1", text)


def sound(found: Any, kernel: TritonKernel, capability: int) -> Code:
    """The kernel's code as compiled by Triton, made again from its LLVM code where that holds such promises."""
    asm = {stage: found.asm[stage] for stage in found.asm}
    text = without_promises(asm["llir"])
    if text != asm["llir"]:
        from triton._C.libtriton import llvm
        from triton.compiler.compiler import make_backend

        llvm.init_targets()  # which nobody has done where Triton took its code from its own cache
        backend = make_backend(found.metadata.target)
        options, metadata = backend.parse_options(dict(kernel.options)), found.metadata._asdict()
        asm["llir"] = text
        asm["ptx"] = backend.make_ptx(text, metadata, options, capability)
        asm["cubin"] = backend.make_cubin(asm["ptx"], metadata, options, capability)
    return Code(asm, found.metadata)
