"""Launching: machine code in process, and one flat Python function for each graph."""
