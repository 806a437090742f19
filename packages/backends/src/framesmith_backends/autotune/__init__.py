"""Autotuning: candidates are timed on the device, and the fastest is kept on disk."""
