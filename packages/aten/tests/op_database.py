"""Torch's operator database: samples of each operator, and the ATen calls that run under them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode


class Watch(TorchDispatchMode):
    """Calls `seen(op, args, kwargs, run)` for every ATen call; `run()` runs it."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        return self.seen(func, args, kwargs, lambda: func(*args, **kwargs))


def run_samples(seen, limit):
    """Runs up to `limit` samples of each operator under a `Watch`; samples that raise are left out.

    In a thread of its own: torch's database and `manual_seed` format the stack at each sample, and pytest's is deep.
    """
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_run_samples, seen, limit).result()


def _run_samples(seen, limit):
    for op in op_db:
        dtypes = op.supported_dtypes("cpu")
        if not dtypes:
            continue
        dtype = torch.float32 if torch.float32 in dtypes else sorted(dtypes, key=str)[0]
        try:
            samples = [sample for _, sample in zip(range(limit), op.sample_inputs("cpu", dtype, requires_grad=False))]
        except Exception:  # made for another device
            continue
        for sample in samples:
            torch.manual_seed(0)
            with Watch(seen):
                try:
                    op.op(sample.input, *sample.args, **sample.kwargs)
                except Exception:
                    continue
