"""A digest of the functions that generated Triton kernels call: part of what machine code and times depend on."""

from __future__ import annotations

import functools
import hashlib
from importlib.resources import files


@functools.cache
def support_digest() -> str:
    """Of the source of `triton_support`, which need not be loaded."""
    source = files(__package__).joinpath("triton_support.py").read_bytes()
    return hashlib.sha256(source).hexdigest()[:32]
