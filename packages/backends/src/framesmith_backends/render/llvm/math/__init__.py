"""Elementary and special functions in LLVM IR."""
