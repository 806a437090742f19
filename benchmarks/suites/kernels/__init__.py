"""Suites of kernels: time, machine code, memory traffic."""
