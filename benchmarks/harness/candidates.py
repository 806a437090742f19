"""The candidates of every benchmark: eager, torch.compile with a cache directory of its own, and framesmith."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

from benchmarks.harness.device import chosen

NAMES = ("eager", "torch.compile", "framesmith")

#: Compilers in the mode that replays what was launched once, for GPUs.
REPLAYING = {"torch.compile reduce-overhead": "torch.compile", "framesmith reduce-overhead": "framesmith"}

#: More programs than any process compiles.
MANY = 1000


def fresh_inductor_cache() -> str:
    """Point torch.compile at an empty cache directory; must run before torch._inductor is first used."""
    folder = tempfile.mkdtemp(prefix="inductor-")
    keep_inductor_cache_in(folder)
    return folder


def keep_inductor_cache_in(folder: str) -> None:
    """Point torch.compile at this cache directory; must run before torch._inductor is first used."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    os.environ["TRITON_CACHE_DIR"] = os.path.join(folder, "triton")


def has_cpp_compiler() -> bool:
    """Whether torch.compile's CPU backend can work here; it needs g++ (ours needs no compiler)."""
    return shutil.which(os.environ.get("CXX", "g++")) is not None


def wrap(name: str, fn: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    """`fn` as this candidate runs it. What a replaying one gives may be overwritten by its next call."""
    if name == "eager":
        return fn
    if name in REPLAYING:
        compiled = wrap(REPLAYING[name], fn, mode="reduce-overhead", **settings)
        return marking_steps(compiled) if REPLAYING[name] == "torch.compile" else compiled
    if name == "torch.compile":
        import torch

        return torch.compile(fn, **settings)
    import framesmith

    return framesmith.compile(fn, **settings)


def marking_steps(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a step for torch.compile before each call that results of earlier ones are no longer wanted."""
    import torch

    def call(*args: Any, **kwargs: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(*args, **kwargs)

    return call


def settings_of(name: str, **ours: Any) -> dict[str, Any]:
    """Return a candidate's call where many programs are compiled in one process, each for its own sizes and kept."""
    if name == "eager":
        return {}
    if REPLAYING.get(name, name) == "framesmith":
        return {"dynamic": False, "strict": True, "recompile_limit": MANY, **ours}
    return {"dynamic": False, **ours}


def compile_many() -> None:
    """Let torch.compile keep as much code for a function as ours (see `settings_of`)."""
    import torch._dynamo.config

    torch._dynamo.config.recompile_limit = MANY  # type: ignore[attr-defined]
    torch._dynamo.config.accumulated_recompile_limit = MANY  # type: ignore[attr-defined]


def available() -> list[str]:
    """The candidates that can run on this machine; on a GPU, torch.compile says itself what it lacks."""
    return [name for name in NAMES if name != "torch.compile" or chosen() != "cpu" or has_cpp_compiler()]
