"""Resuming a function at one of its instructions, and cutting it there."""
