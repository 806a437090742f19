"""Triton kernels as machine code of a GPU, compiled side by side and kept in the user's cache folder.

A file holds a line of JSON, what a launch has to know, and behind it the code: nothing that is run in this process.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import triton

from framesmith_backends import storage
from framesmith_backends.launch.cuda.support_source import support_digest
from framesmith_backends.launch.cuda.triton_jit import compiled
from framesmith_backends.launch.cuda.vector_flags import PROMISES
from framesmith_backends.render.triton.kernel import TritonKernel
from framesmith_backends.target import most_shared

#: The values in Triton's metadata for a launch of ours, which has no more to it than a grid and parameters.
PLAIN: dict[str, object] = {
    "global_scratch_size": 0, "profile_scratch_size": 0, "num_ctas": 1, "launch_cooperative_grid": False,
    "launch_pdl": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code, the name of its function, threads of a block and bytes of memory that these share."""

    function: str
    threads: int
    shared: int
    code: bytes


def cubins(wanted: Sequence[tuple[TritonKernel, bool]], capability: int) -> list[Cubin]:
    """Each kernel's code, for aligned numbers where that is said; kernels of the same source share it, and its name."""
    names = [_file(kernel, aligned, capability) for kernel, aligned in wanted]
    first: dict[str, tuple[TritonKernel, bool]] = {}
    for name, one in zip(names, wanted, strict=True):
        first.setdefault(name, one)
    with ThreadPoolExecutor(max(1, min(os.cpu_count() or 1, len(first)))) as pool:
        made = pool.map(lambda one: cubin(one[0], one[1], capability), first.values())
        found = dict(zip(first, made, strict=True))
    return [found[name] for name in names]


def cubin(kernel: TritonKernel, aligned: bool, capability: int, anywhere: bool = False) -> Cubin:
    """The kernel's code, for tensors that begin at multiples of 16 bytes or `anywhere`; from the cache folder if known.

    Raises ValueError where it cannot be launched by its grid and parameters alone, or asks for more shared memory than
    such GPUs have.
    """
    name = _file(kernel, aligned, capability, anywhere)
    kept = storage.read(name)
    if kept is not None:
        head, _, code = kept.partition(b"\n")
        return Cubin(**json.loads(head), code=code)
    found = compiled(kernel, capability, aligned, anywhere)
    _refuse_more_than_a_grid(kernel.name, found.metadata)
    _refuse_too_much_shared(kernel.name, found.metadata.shared, capability)
    about = {"function": found.metadata.name, "threads": 32 * kernel.warps, "shared": found.metadata.shared}
    code = found.asm["cubin"]
    storage.write(name, json.dumps(about).encode() + b"\n" + code)
    return Cubin(**about, code=code)


def _refuse_more_than_a_grid(name: str, metadata: Any) -> None:
    more = [key for key, value in PLAIN.items() if getattr(metadata, key, value) != value]
    if more:
        raise ValueError(f"{name} needs more than a grid to be launched: {', '.join(more)}")


def _refuse_too_much_shared(name: str, shared: int, capability: int) -> None:
    most = most_shared(capability)
    if shared > most:
        raise ValueError(f"{name} needs {shared} bytes of shared memory, and sm_{capability} has {most} for a launch")


def _file(kernel: TritonKernel, aligned: bool, capability: int, anywhere: bool = False) -> str:
    versions = triton.__version__, support_digest(), PROMISES.pattern
    even = kernel.aligned if aligned else ()  # which numbers these are is not in the source
    parts = (
        kernel.anonymous_source,
        kernel.block,
        kernel.options,
        kernel.parameters,
        even,
        anywhere,
        capability,
        versions,
    )
    return f"cubin-{hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}{storage.CODE}"
