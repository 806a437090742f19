"""Fusion of definitions into groups, each a kernel."""
