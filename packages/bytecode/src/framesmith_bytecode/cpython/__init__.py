"""What is CPython's own: each version's instruction encoding, and the byte formats of its tables."""
