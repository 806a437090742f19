"""Operators of our own in torch's namespace, a folder each: graph rewrite, shape rule, LLVM renderer, launcher."""
