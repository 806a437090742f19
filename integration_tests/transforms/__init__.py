"""Functions whose bodies are graphs within a graph: transforms of torch.func, autograd Functions."""
