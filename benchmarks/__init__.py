"""Benchmarks: eager, torch.compile and framesmith interleaved in one process. Run `python -m benchmarks -h`."""
