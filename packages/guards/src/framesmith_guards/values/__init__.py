"""Expectations of guards: constants by content, objects by identity, specs of tensors and classes."""
