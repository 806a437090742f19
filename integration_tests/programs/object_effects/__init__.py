"""Programs whose effects are not on containers: attributes of tensors and objects, hooks, generators left half-run."""
