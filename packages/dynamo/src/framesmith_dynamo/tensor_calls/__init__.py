"""Calls of torch recorded in the graph, and their effects on real tensors."""
