"""Suites of whole models and training steps."""
