"""Backward passes captured as one program."""
