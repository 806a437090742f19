"""Compiling LLVM IR in this process."""
