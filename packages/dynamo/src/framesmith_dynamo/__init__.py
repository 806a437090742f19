"""The symbolic interpreter: a Python frame becomes an FX graph, guards and residual code."""
