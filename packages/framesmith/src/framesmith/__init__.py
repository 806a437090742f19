"""Compile PyTorch programs: framesmith.compile() composes the layers."""
