"""Tensors, torch's functions, operators and modes."""
