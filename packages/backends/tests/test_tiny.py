"""The first file to run: a graph becomes kernels that compute what torch does, and the stages can be read."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from framesmith_backends import find_backend


def function(x, y):
    return torch.softmax(torch.nn.functional.gelu(x * y + 1), -1), x.sum(0)


def test_kernels_compute_what_torch_does():
    inputs = [torch.linspace(-2, 2, 480).reshape(16, 30), torch.linspace(0, 1, 480).reshape(16, 30)]
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    call = find_backend("cpu").compile(graph, inputs)
    torch.testing.assert_close(list(call(list(inputs))), list(function(*inputs)))


def test_stages_are_explained():
    inputs = [torch.ones(16, 30), torch.ones(16, 30)]
    stages = find_backend("cpu").explain(make_fx(function, tracing_mode="fake")(*inputs))
    assert stages.plan.kernels and all(kernel.text() for kernel in stages.plan.kernels)
