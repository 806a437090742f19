"""Torch's operators with `dynamic=True`: sizes A, then B, then A again, against eager, forward and backward.

A twentieth of the operators with one pair each; long runs, `FRAMESMITH_LONG=1`, take all with three each, on two
backends.
"""

from __future__ import annotations

import pytest
import torch

from integration_tests.harness.sweeps import LONG
from integration_tests.operators.op_pairs import DTYPES, OPS, pairs, run_pair

NAMES = sorted(OPS) if LONG else sorted(OPS)[3::20]
PAIRS = 3 if LONG else 1
#: At least so many of the pairs that may share an entry do; of a few operators it may be fewer.
SHARED = 0.9 if LONG else 0.8
#: The same, of those that have no graph break either.
WHOLE = 0.85 if LONG else 0.8


@pytest.mark.sampled(20)
@pytest.mark.timeout(7200 if LONG else 300)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", ["aot_eager", "eager"] if LONG else ["aot_eager"])
def test_sizes_a_b_a(backend: str, dtype: torch.dtype) -> None:
    may_share = shared = whole = total = 0
    for name in NAMES:
        for pair in pairs(name, dtype, PAIRS):
            outcome = run_pair(pair, backend)
            total += 1
            assert outcome.status not in {"wrong", "refused"}, f"{name}: {outcome.detail}\n{pair.text}"
            if pair.may_share:
                may_share += 1
                shared += outcome.entries == 1
                whole += outcome.entries == 1 and not outcome.breaks
    assert total > len(NAMES) // 3
    assert shared >= SHARED * may_share, f"{shared} of {may_share} share an entry"
    assert whole >= WHOLE * may_share, f"{whole} of {may_share} share an entry without a break"
