"""Autograd Functions: by themselves, under transforms, and their gradients by finite differences."""
