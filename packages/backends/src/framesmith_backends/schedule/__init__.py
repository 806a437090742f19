"""Scheduling: what is needed, split, inlined, fused into kernels, in which loops, and launched in which order."""
