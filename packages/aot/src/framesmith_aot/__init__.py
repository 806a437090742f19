"""FX graphs to functional ATen graphs, forward and backward, with generated run-time wrappers."""
