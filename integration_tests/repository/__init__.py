"""Checks of the repository itself: pages, layers, tables, benchmarks."""
