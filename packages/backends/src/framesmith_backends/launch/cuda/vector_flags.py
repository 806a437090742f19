"""A fault of LLVM's that the code of Triton kernels is kept free of: promises about lanes of vectors that nobody reads.

Where LLVM puts numbers side by side (`SLPVectorizer`) that are computed by different operations, it computes both
operations for all of them and picks: `pid & 31` and `lane << 2` become `<pid, lane> << <31, 2>` beside an `and`. The
shift keeps the promise that nothing is lost beyond 32 bits (`nuw`), which holds for the selected lane alone.
The code generator for NVIDIA's GPUs then packs both lanes into 64 bits, and what the first lane promised not to lose
ends up in the second one: a wrong number, or an address beyond a tensor. Met with Triton 3.6, in the backward pass of
T5. So promises about whole vectors are taken back, and the code made again of what is left, which is as fast.
"""

from __future__ import annotations

import re

#: Machine code that is kept depends on it.
PROMISES = re.compile(
    r"(= (?:add|sub|mul|shl|or|lshr|ashr|udiv|sdiv|trunc|zext|uitofp|icmp) )"
    r"(?:(?:nuw|nsw|exact|disjoint|nneg|samesign) )+(?=(?:[a-z]+ )?<\d+ x )"
)


def without_promises(text: str) -> str:
    """LLVM's code with no promise about a vector's arithmetic."""
    return PROMISES.sub(r"\1", text)
