"""Torch's fake tensors, made without importing torch._dynamo."""
