"""Values: stand-ins for Python objects while tracing, one module per family of types."""
