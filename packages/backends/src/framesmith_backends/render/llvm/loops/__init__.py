"""Loop nests in LLVM IR."""
