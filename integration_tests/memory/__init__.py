"""Aliasing, layouts and storage of tensors, and what compiling leaves in memory."""
