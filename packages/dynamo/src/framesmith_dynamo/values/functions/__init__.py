"""Python functions, what binds their arguments, and what wraps them."""
