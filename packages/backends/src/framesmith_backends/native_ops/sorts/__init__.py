"""Sorts on the CPU."""
