"""Listings and renderings of a `Bytecode`, for people."""
