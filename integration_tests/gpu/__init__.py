"""Tests that need a GPU, real or simulated."""
