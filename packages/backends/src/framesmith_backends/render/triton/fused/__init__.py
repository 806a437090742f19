"""Matmuls and attention in Triton source."""
