"""A GPU that is none: torch believes in it, its kernels are emulated, and torch's operators are computed on the CPU."""
