"""Segments of a recorded pass: traced, compiled for the values they get, and run."""
