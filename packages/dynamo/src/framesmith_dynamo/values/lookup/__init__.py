"""Look-up of objects in their owners, without running user code."""
