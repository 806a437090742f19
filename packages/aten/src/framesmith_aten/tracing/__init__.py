"""Tracing: what runs on fake tensors becomes a graph of ATen calls."""
