"""Programs whose guarded state changes between calls, one module for each kind of holder."""
