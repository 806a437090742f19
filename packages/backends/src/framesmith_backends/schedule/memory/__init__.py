"""Memory of results: allocation, reuse, in-place writes, memory-bounded order."""
