"""CUDA graphs: what may be captured, capturing, and replaying."""
