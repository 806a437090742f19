"""Random operators return eager mode's numbers, and leave the generator in its state."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from harness import graph_of, run_both
from torch import fx

RANDOM = {
    "rand_like": lambda x: torch.rand_like(x) * x,
    "randn_like": lambda x: torch.randn_like(x) + x,
    "bernoulli": lambda x: torch.bernoulli(x.detach()) * x,
    "bernoulli_": lambda x: (x * 0 + 1).bernoulli_(0.4) * x,
    "bernoulli_ in gaps": lambda x: (x.detach() * 1).t()[1:].bernoulli_(0.4),
    "bernoulli out": lambda x: torch.bernoulli(x.detach().t(), out=torch.empty_like(x.detach().t())),
    "bernoulli_ transposed": lambda x: torch.empty_like(x.detach().t()).bernoulli_(x.detach().t()),
    "normal_": lambda x: (x * 0).normal_(1, 2) * x,
    "random_ within bounds": lambda x: (x.detach() * 0).random_(2, 9) * x,
    "random_ transposed": lambda x: (x.detach() * 0).t().random_(-3, 100),
    "random_ of integers": lambda x: x.detach().to(torch.int64).random_(0, 2**20),
    "uniform_": lambda x: (x * 0).uniform_(1, 2) * x,
    "exponential_": lambda x: (x.detach() * 0).exponential_(2.0) * x,
    "geometric_": lambda x: (x.detach() * 0).geometric_(0.3),
    "cauchy_": lambda x: (x.detach() * 0).cauchy_(),
    "normal": lambda x: torch.normal(x.detach(), 1.0),
    "poisson": lambda x: torch.poisson(x.detach()),
    "multinomial": lambda x: torch.multinomial(x.detach(), 3),
    "randint_like": lambda x: torch.randint_like(x, 5) * x,
    "dropout": lambda x: F.dropout(x),
    "dropout in place": lambda x: F.dropout(x * 1, 0.5, True, True),
    "dropout2d": lambda x: F.dropout2d(x[None, None], 0.3, True),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.3, True),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x[None], 0.3, True),
    "rrelu": lambda x: F.rrelu(x, 0.1, 0.3, True),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.3),
}
FACTORIES = {"rand": (torch.rand, (3,)), "randn": (torch.randn, (3,)), "randperm": (torch.randperm, (5,))}


@pytest.mark.parametrize("name", RANDOM)
def test_random(name):
    torch.manual_seed(0)
    run_both(graph_of(RANDOM[name]), [torch.rand(6, 8, requires_grad=True)])


@pytest.mark.parametrize("name", FACTORIES)
def test_factory(name):
    function, args = FACTORIES[name]
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(function, args), graph.call_function(torch.mul, (x, 2))))
    run_both(fx.GraphModule({}, graph), [torch.rand(6, requires_grad=True)])
