"""Second derivatives of a compiled graph."""
