"""Providers of matmuls: our own compiled kernel, the libraries beside it, and which is fastest where."""
