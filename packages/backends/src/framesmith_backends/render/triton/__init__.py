"""Kernels as the source of Triton functions."""
