"""Matmuls and attention of a GPU, fused with the pointwise work around them."""
