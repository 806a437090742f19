"""A torch-level graph run once on functional fake tensors, forward and backward, and what it does besides computing."""
