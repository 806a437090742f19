"""Generated Triton sources as functions, and what Triton compiles of them for a GPU, which need not be there."""

from __future__ import annotations

import hashlib
import linecache
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from framesmith_backends.launch.cuda import triton_support
from framesmith_backends.launch.cuda.vector_flags import without_promises
from framesmith_backends.render.triton.kernel import POINTER_ALIGNMENT, SIZE_DIVISOR, TritonKernel

_LOADED: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Code:
    """A kernel compiled by Triton: texts and machine code by stage (`ptx`, `cubin`, ...), and the launch's metadata."""

    asm: dict[str, Any]
    metadata: Any


def load(kernel: TritonKernel) -> Any:
    """The kernel as a Triton function; the same source is loaded once, for all numbers."""
    key = hashlib.sha256(kernel.source.encode()).hexdigest()[:16]
    found = _LOADED.get(key)
    if found is None:
        # Triton reads a function's source back through `inspect`, which asks `linecache`.
        file = f"<framesmith triton {key}>"
        linecache.cache[file] = (len(kernel.source), None, kernel.source.splitlines(True), file)
        space: dict[str, Any] = {
            "triton": triton,
            "tl": tl,
            "fs": triton_support,
            "__name__": "framesmith_backends.generated",
        }
        exec(compile(kernel.source, file, "exec"), space)
        general = [f"n{k}" for k in range(len(kernel.numbers))]
        jit = triton.jit(do_not_specialize=[*general, *(["first"] if kernel.has_first else [])])
        found = _LOADED[key] = jit(space[kernel.name])
    return found


def compiled(kernel: TritonKernel, capability: int, aligned: bool = False, anywhere: bool = False) -> Code:
    """Compile the kernel for that compute capability (90: sm_90); no GPU is needed.

    Tensors begin at multiples of 16 bytes, or `anywhere`; the numbers that `kernel.aligned` names may be `aligned`,
    divisible by 16.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = dict(kernel.parameters)
    pointers = len(kernel.pointers)
    divisors = dict.fromkeys(range(0 if anywhere else pointers), POINTER_ALIGNMENT)
    divisors |= {pointers + k: SIZE_DIVISOR for k in kernel.aligned if aligned}
    attrs = {(k,): [["tt.divisibility", divisor]] for k, divisor in divisors.items()}
    source = ASTSource(load(kernel), signature, {}, attrs)
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=kernel.options)
    return _without_promises(found, kernel, capability)


def _without_promises(found: Any, kernel: TritonKernel, capability: int) -> Code:
    """The code, made again from LLVM's where that promises something of vectors: see `vector_flags`."""
    asm = {stage: found.asm[stage] for stage in found.asm}
    if "llir" not in asm:
        raise ValueError("Triton keeps no LLVM code of its kernels, which is looked at; unset TRITON_STORE_BINARY_ONLY")
    text = without_promises(asm["llir"])
    if text != asm["llir"]:
        from triton._C.libtriton import llvm, nvidia
        from triton.compiler.compiler import make_backend

        # What Triton does on its way to LLVM's code, and has not done where it found that in its own cache.
        llvm.init_targets()
        if hasattr(nvidia, "set_short_ptr"):
            nvidia.set_short_ptr()
        backend = make_backend(found.metadata.target)
        options, metadata = backend.parse_options(dict(kernel.options)), found.metadata._asdict()
        asm["llir"] = text
        asm["ptx"] = backend.make_ptx(text, metadata, options, capability)
        asm["cubin"] = backend.make_cubin(asm["ptx"], metadata, options, capability)
    return Code(asm, found.metadata)
