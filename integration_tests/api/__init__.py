"""`framesmith.compile()`'s settings and torch.compile's own entry points and switches."""
