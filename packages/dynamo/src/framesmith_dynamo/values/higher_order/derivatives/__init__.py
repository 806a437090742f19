"""Derivatives of functions in a trace: `torch.func`'s transforms, and forward-mode AD."""
