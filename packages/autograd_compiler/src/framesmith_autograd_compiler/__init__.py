"""The autograd engine's backward pass captured as one FX graph."""
