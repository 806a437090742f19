"""Kernels of one graph that share a function still run over their own extents."""

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from framesmith_backends.cpu import backend


def two_sizes(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.softmax(x, -1), torch.softmax(y, -1)


def test_the_same_kernel_over_more_and_fewer_rows() -> None:
    inputs = [torch.randn(70, 16), torch.randn(5, 16)]
    for order in (inputs, inputs[::-1]):
        gm: fx.GraphModule = make_fx(two_sizes, tracing_mode="fake")(*order)
        stages = backend.explain(gm)
        assert stages.llvm.count("define internal void @k") == 1
        call = backend.compile(gm, order)
        for _ in range(20):
            for got, wanted in zip(call(list(order)), two_sizes(*order), strict=True):
                torch.testing.assert_close(got, wanted)
