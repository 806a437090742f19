"""The candidates of every benchmark: eager, torch.compile with a cache directory of its own, and framesmith."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

NAMES = ("eager", "torch.compile", "framesmith")


def fresh_inductor_cache() -> str:
    """Point torch.compile at an empty cache directory; must run before torch._inductor is first used."""
    folder = tempfile.mkdtemp(prefix="inductor-")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    os.environ["TRITON_CACHE_DIR"] = os.path.join(folder, "triton")
    return folder


def has_cpp_compiler() -> bool:
    """Whether torch.compile's CPU backend can work here; it needs g++ (ours needs no compiler)."""
    return shutil.which(os.environ.get("CXX", "g++")) is not None


def wrap(name: str, fn: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    """`fn` as this candidate runs it."""
    if name == "eager":
        return fn
    if name == "torch.compile":
        import torch

        return torch.compile(fn, **settings)
    import framesmith

    return framesmith.compile(fn, **settings)


def available() -> list[str]:
    """The candidates that can run on this machine."""
    return [name for name in NAMES if name != "torch.compile" or has_cpp_compiler()]
