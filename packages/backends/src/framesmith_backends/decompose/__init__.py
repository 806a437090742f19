"""Decompositions: composite operators in terms of the core ones."""
