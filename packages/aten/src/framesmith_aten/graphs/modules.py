"""Graph modules that release their text, which FX keeps for tracebacks as long as the process runs."""

from __future__ import annotations

import linecache
import operator
import weakref
from typing import Any

import torch
from torch import fx

from framesmith_aten.torch_adapter import unstable


def new_module(root: torch.nn.Module | dict[str, Any], graph: fx.Graph) -> fx.GraphModule:
    _spell_powers(graph)
    return _forgetting(fx.GraphModule(root, graph))


def new_lazy_module(root: torch.nn.Module | dict[str, Any], graph: fx.Graph) -> fx.GraphModule:
    """`new_module`, whose Python text is made on first use."""
    _spell_powers(graph)
    return _forgetting(unstable.LazyGraphModule(root, graph))


def _spell_powers(graph: fx.Graph) -> None:
    """Write powers of constants as calls: FX writes `-2.0 ** n`, which is -(2.0**n), for `operator.pow` of -2.0."""
    for node in graph.find_nodes(op="call_function", target=operator.pow):
        if not isinstance(node.args[0], fx.Node):
            node.target = pow


def _forgetting(module: fx.GraphModule) -> fx.GraphModule:
    weakref.finalize(module, _forget_text, type(module))
    return module


def _forget_text(cls: type[fx.GraphModule]) -> None:
    """Drop the text that FX and `linecache` hold under the file name invented for a module; each has its own class."""
    filename = cls.forward.__code__.co_filename
    if fx.graph_module._loader.eval_cache.pop(filename, None) is not None:
        linecache.cache.pop(filename, None)
