"""LLVM's pages after a compile, and a compile after they were given back."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from tracing import trace

from framesmith_backends import CpuBackend


def resident(library: str) -> int:
    """Bytes of the library's code in this process's memory."""
    found, mine = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            mine = line.endswith(library) and "x" in rest[0]
        elif mine and first == "Rss:":
            found += int(rest[0]) * 1024
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of memory")
def test_code_of_the_compiler_is_given_back_and_works_again() -> None:
    from llvmlite import binding

    x = torch.randn(53)
    for factor in (1.25, 1.5):
        (found,) = CpuBackend().compile(trace(lambda a, k=factor: a * k + 3, [x]), [x])([x])
        torch.testing.assert_close(found, x * factor + 3)
        binding.parse_assembly("")
        assert 0 < resident("libllvmlite.so") < 4 << 20
