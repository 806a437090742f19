"""Sources, guards and tracing contexts; guard sets compiled to fast checks."""
