"""Values: Python objects as the tracer sees them, one module per family of types."""
