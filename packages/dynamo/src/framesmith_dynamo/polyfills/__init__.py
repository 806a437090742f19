"""Python equivalents of C functions, interpreted like the user's own code."""
