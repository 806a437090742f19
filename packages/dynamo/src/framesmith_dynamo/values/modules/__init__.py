"""nn.Module objects and Python modules."""
