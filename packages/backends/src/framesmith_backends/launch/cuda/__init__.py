"""Compiling and launching Triton kernels."""
