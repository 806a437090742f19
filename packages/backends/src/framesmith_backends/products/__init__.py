"""Providers of matrix products: our own compiled kernel, the libraries beside it, and which is fastest where."""
