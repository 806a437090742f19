"""Rendering: kernels as LLVM IR or as Triton source."""
