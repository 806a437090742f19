"""A digest of the functions that generated Triton kernels call: part of what machine code and times depend on."""

from __future__ import annotations

import functools
import hashlib
from importlib.resources import files

from framesmith_backends.render.llvm.math.approximate import GELU_END, GELU_P


@functools.cache
def support_digest() -> str:
    """Of the source of `triton_support`, which need not be loaded, and of the numbers that it takes from elsewhere."""
    source = files(__package__).joinpath("triton_support.py").read_bytes()
    return hashlib.sha256(source + repr((GELU_END, GELU_P)).encode()).hexdigest()[:32]
