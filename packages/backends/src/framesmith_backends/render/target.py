"""What the renderer knows of the processor: its vector width, and how wide a kernel's lanes are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """`bytes` is the vector register's size; `name` and `features` are LLVM's."""

    name: str
    features: str
    bytes: int
    half: bool

    @property
    def float_lanes(self) -> int:
        return self.bytes // 4

    @property
    def vectors(self) -> str:
        return vectors_of(self.bytes)


def vectors_of(register_bytes: int) -> str:
    """The vector instructions that come with registers of that size: "avx512", "avx2", or "" where none is named.

    Registers of 16 bytes are SSE's and NEON's, for which LLVM alone chooses instructions.
    """
    return {64: "avx512", 32: "avx2"}.get(register_bytes, "")


def host() -> Target:
    """The processor this process runs on."""
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    if features.get("avx512f") and features.get("avx512bw") and features.get("avx512vl"):
        width = 64
    elif features.get("avx2"):
        width = 32
    else:
        width = 16
    half = bool(features.get("f16c") or features.get("fullfp16") or features.get("fp16"))
    return Target(binding.get_host_cpu_name(), features.flatten(), width, half)
