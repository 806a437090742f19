"""Zeros have the sign that they have in eager mode."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from graphs.tracing import trace
from interpreter_scripts.run import interpreted
from interpreter_scripts.zeros import PROGRAMS, TYPES, ZEROS, differing

from framesmith_backends import CpuBackend, CudaBackend


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_signs_are_eagers(name: str) -> None:
    for kind in TYPES:
        x = ZEROS.to(kind)
        (found,) = CpuBackend().compile(trace(PROGRAMS[name], [x]), [x])([x])
        assert not differing(found, PROGRAMS[name](x))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_interpreted_signs_are_eagers() -> None:
    assert interpreted("zeros").count("ok ") == len(PROGRAMS) * len(TYPES)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", PROGRAMS)
def test_signs_on_a_real_device(name: str) -> None:
    for kind in TYPES:
        with torch.device("cuda"):
            x = ZEROS.to("cuda", kind)
            (found,) = CudaBackend().compile(trace(PROGRAMS[name], [x]), [x])([x])
            assert not differing(found, PROGRAMS[name](x))
