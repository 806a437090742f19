"""Errors and failures: the user's, the compiler's, and which line they name."""
