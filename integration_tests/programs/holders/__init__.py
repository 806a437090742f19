"""Programs whose holders of values change between calls, one module for each kind of holder."""
