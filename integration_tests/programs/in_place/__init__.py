"""Programs that change tensors in place, by every form and in every mode."""
