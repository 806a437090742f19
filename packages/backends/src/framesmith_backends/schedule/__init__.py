"""Scheduling: what is needed, split, inlined, fused into kernels, and in which loops."""
