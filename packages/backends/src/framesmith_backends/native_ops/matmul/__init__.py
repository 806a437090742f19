"""Matmuls on the CPU: the native kernel, and the choice between it, ATen and oneDNN."""
