"""Scheduling: liveness, splitting, inlining, fusion into kernels, loops, memory, and the launch list."""
