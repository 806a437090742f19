"""Guard sets compiled: their order, their text, the programs that run them, and why one misses."""
