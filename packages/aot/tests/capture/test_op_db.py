"""Torch's operator database through `aot_function`: in place, with `out=`, in all layouts, dynamic; see `op_db`."""

from __future__ import annotations

import itertools

import pytest
from op_samples import OPS

from capture.op_db import DTYPES, FORMS, LAYOUTS, UNDEFINED, outcome, samples

#: Operators that eager mode does not define wholly, and why comparing fails.
LEFT_OPEN = {
    "masked.median": "the gradient goes to any of equal elements",
    "split_with_sizes_copy": "writing to `out` moves no version counter",
    "unbind_copy": "writing to `out` moves no version counter",
}
#: Ids of refusals, each with a reason: see docs/errors.md.
REFUSALS = {
    "backward-error", "data-dependent", "generator", "layout", "lost-result", "metadata-mutation",
    "overlapping-mutation", "seed", "strange-result", "tensor-method", "trace-error", "view-or-copy", "outside-view",
    "rng-order", "hidden-mutation", "aliased-inputs", "argument",
}  # fmt: skip
NAMES = [name for name in sorted(OPS) if not name.startswith(UNDEFINED) and name not in LEFT_OPEN]


def check(name, limit, dynamics=(False, True), layouts=LAYOUTS):
    op = OPS[name]
    for dtype, form, layout, dynamic in itertools.product(DTYPES, FORMS, layouts, dynamics):
        if dtype not in op.supported_dtypes("cpu"):
            continue
        for sample in samples(op, dtype, limit):
            found = outcome(op, form, layout, sample, dynamic)
            if found not in (None, "equal"):
                assert found.partition(" ")[2] in REFUSALS and found.startswith("refused"), (dtype, form, layout, found)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES[::5])
def test_operator_in_every_form(name):
    check(name, 1, layouts=("plain", "expanded"))


@pytest.mark.broad
@pytest.mark.parametrize("name", NAMES)
def test_operator_in_every_form_broadly(name):
    check(name, 4)
