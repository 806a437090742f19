"""Which definitions share a kernel."""
