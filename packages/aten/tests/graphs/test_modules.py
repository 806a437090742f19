"""Graph modules: what FX keeps of them goes with them."""

import gc
import linecache
import operator

import pytest
import torch
from torch import fx

from framesmith_aten.graphs.modules import new_lazy_module, new_module


def adding_one(x):
    return x.relu() + 1


def graph_of(function):
    return fx.symbolic_trace(function).graph


@pytest.mark.parametrize("make", [new_module, new_lazy_module])
@pytest.mark.parametrize("base", [-2.0, -2, 2])
def test_a_power_of_a_constant(make, base):
    graph = fx.Graph()
    exponent = graph.placeholder("exponent")
    powers = [graph.call_function(operator.pow, pair) for pair in ((base, exponent), (exponent, base))]
    graph.output(tuple(powers))
    module = make(torch.nn.Module(), graph)
    assert [module(number) for number in (2, 3)] == [(base**2, 2**base), (base**3, 3**base)]


@pytest.mark.parametrize("make", [new_module, new_lazy_module])
def test_the_text_goes_with_the_module(make):
    texts = fx.graph_module._loader.eval_cache
    graph = graph_of(adding_one)
    gc.collect()
    kept, lines = len(texts), len(linecache.cache)
    for _ in range(5):
        module = make(torch.nn.Module(), graph)
        assert torch.equal(module(torch.ones(2)), torch.full((2,), 2.0))
        filename = type(module).forward.__code__.co_filename
        assert "relu" in "".join(linecache.getlines(filename))
    del module, graph  # each holds the other
    gc.collect()
    assert (len(texts), len(linecache.cache)) == (kept, lines)


def test_a_module_that_was_never_run_has_no_text():
    kept = len(fx.graph_module._loader.eval_cache)
    module = new_lazy_module(torch.nn.Module(), graph_of(adding_one))
    del module
    gc.collect()
    assert len(fx.graph_module._loader.eval_cache) <= kept + 1
