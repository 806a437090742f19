"""Rewrites of the FX graph before lowering, as pattern tables."""
