"""CPython's formats: each version's instruction encoding, and the byte formats of its tables."""
