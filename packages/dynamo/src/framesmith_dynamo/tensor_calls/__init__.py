"""Calls into the graph, and what they may do on real tensors."""
