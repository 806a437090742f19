"""torch's functions, operator objects, context managers and `autograd.Function`."""
