"""Matmuls of our own as LLVM IR: packing, register tiles, dot products, loops and threads around them."""
