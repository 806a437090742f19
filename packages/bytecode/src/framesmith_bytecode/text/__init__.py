"""Listings and renderings of a `Bytecode`."""
