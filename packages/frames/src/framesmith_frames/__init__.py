"""A PEP 523 frame hook with a per-code cache and native dispatch."""
