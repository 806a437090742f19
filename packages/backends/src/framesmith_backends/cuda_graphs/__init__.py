"""CUDA graph capture: which graphs and calls may be captured, capture, and replay."""
