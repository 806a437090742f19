"""Layers of torch.nn: recurrent, attention, convolution, batch norm."""
