"""A fault of LLVM's that Triton kernels are kept free of: promises about lanes of vectors that nobody reads.

`SLPVectorizer` computes two operations side by side for all lanes and selects: `pid & 31` and `lane << 2` become
`<pid, lane> << <31, 2>` beside an `and`, with the shift's promise `nuw`, which holds for the selected lane alone. The
code generator then packs both lanes into 64 bits, and what the first one promised not to lose ends up in the second
(Triton 3.6, T5's backward pass). So promises about whole vectors are dropped, and code made again, which is as fast.
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
