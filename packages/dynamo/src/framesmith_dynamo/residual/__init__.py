"""Residual code: the bytecode that runs in place of the frame."""
