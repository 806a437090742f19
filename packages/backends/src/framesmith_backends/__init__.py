"""Functional ATen graphs to kernels: CPU through LLVM, CUDA through Triton, and eager."""
