"""Optimizers, schedulers and what helps them: graphs, compilations, results beside eager mode."""
