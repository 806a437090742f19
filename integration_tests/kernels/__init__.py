"""Kernels for GPUs without a GPU: Triton's interpreter, machine code, captured launches."""
