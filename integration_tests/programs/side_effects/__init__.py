"""Programs whose side effects are traced: what containers, objects, tensors, hooks and generators can do."""
