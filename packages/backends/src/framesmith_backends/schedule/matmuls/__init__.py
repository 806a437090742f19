"""Matmuls and attention: with epilogues and prologues on GPUs, as BLAS calls on CPUs."""
