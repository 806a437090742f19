"""Tensors: values, attributes and methods, subscripts, construction."""
