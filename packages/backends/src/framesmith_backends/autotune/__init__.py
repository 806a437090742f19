"""Autotuning: candidates timed on the device, the times stored on disk in the autotuner cache."""
