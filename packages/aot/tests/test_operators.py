"""Torch's operator database, each sample as a compiled graph of one call, against eager."""

from __future__ import annotations

import re

import pytest
from harness import run_both
from op_samples import OPS, samples

from framesmith_aot import AotUnsupported

#: Results that are undefined, random under a seed of the sample's own, or not of dense tensors.
NOT_COMPARABLE = re.compile(
    "empty|to_sparse|linalg.eig$|_flash_attention|_efficient_attention|dropout|multinomial|normal|cauchy|bernoulli"
    "|exponential|geometric|uniform|rand|_lowrank|rrelu|fractional|multi_head|_native_batch_norm_legit"
    "|_batch_norm_with_update|scaled_dot_product_attention|without_cudnn"
)
NAMES = [name for name in sorted(OPS) if not NOT_COMPARABLE.search(name)]
#: Reasons for which a sample may be refused.
REFUSALS = re.compile("data-dependent|hidden-mutation|backward-error|generator|layout")


def check(name, limit):
    tried = 0
    for gm, tensors in samples(OPS[name], True, limit):
        try:
            run_both(gm, tensors, calls=1)
        except AotUnsupported as error:
            assert REFUSALS.search(str(error)), error
        tried += 1
    return tried


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", NAMES[::4])
def test_operator(name):
    check(name, 2)


@pytest.mark.broad
@pytest.mark.parametrize("name", NAMES)
def test_operator_broadly(name):
    check(name, 20)
