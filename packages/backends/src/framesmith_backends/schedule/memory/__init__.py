"""Where results lie: allocation, reuse, in-place writes, memory-bounded order."""
