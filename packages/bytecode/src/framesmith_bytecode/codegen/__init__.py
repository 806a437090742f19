"""Generates canonical instructions."""
