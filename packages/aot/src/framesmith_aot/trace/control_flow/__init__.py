"""Control flow in the trace: bodies become graphs of their own, and calls of them nodes, also of their gradients."""
