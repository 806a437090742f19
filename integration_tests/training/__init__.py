"""Training steps: optimizers, clipped gradients, whole steps and published recipes."""
