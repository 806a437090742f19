"""Generated Triton sources as functions: launched on tensors, or compiled ahead of time to a cubin."""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Callable, Sequence
from typing import Any

import triton
import triton.language as tl

from framesmith_backends.launch import triton_support
from framesmith_backends.render.triton import TritonKernel

_LOADED: dict[str, Any] = {}


def load(kernel: TritonKernel) -> Any:
    """The kernel as a Triton function; the same source is loaded once."""
    key = hashlib.sha256(kernel.source.encode()).hexdigest()[:16]
    found = _LOADED.get(key)
    if found is None:
        # Triton reads a function's source back through `inspect`, which asks `linecache`.
        file = f"<framesmith triton {key}>"
        linecache.cache[file] = (len(kernel.source), None, kernel.source.splitlines(True), file)
        space: dict[str, Any] = {"tl": tl, "fs": triton_support, "__name__": "framesmith_backends.generated"}
        exec(compile(kernel.source, file, "exec"), space)
        found = _LOADED[key] = triton.jit(space[kernel.name])
    return found


def to_cubin(kernel: TritonKernel, capability: int) -> bytes:
    """Machine code for that compute capability (90: sm_90); no GPU is needed."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {f"p{k}": pointer for k, pointer in enumerate(kernel.pointers)} | {"BLOCK": "constexpr"}
    source = ASTSource(load(kernel), signature=signature, constexprs={"BLOCK": kernel.block})
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": kernel.warps})
    found: bytes = compiled.asm["cubin"]
    return found


def entry(kernels: Sequence[TritonKernel], arguments: Sequence[tuple[int, ...]]) -> Callable[..., None]:
    """A function of the launch list's tensors that launches the kernels in order."""
    loaded = [(load(kernel), kernel, places) for kernel, places in zip(kernels, arguments, strict=True)]

    def run(*buffers: Any) -> None:
        for function, kernel, places in loaded:
            function[(kernel.grid,)](*[buffers[k] for k in places], BLOCK=kernel.block, num_warps=kernel.warps)

    return run
