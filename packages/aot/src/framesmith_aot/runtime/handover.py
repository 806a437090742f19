"""Hands one finished graph to the backend compiler."""

from __future__ import annotations

from typing import Any

from torch import fx

from framesmith_aten.assumptions import raising_assumptions
from framesmith_aten.contract import BoxedFn, Compiler, Role
from framesmith_aten.graphs.modules import new_lazy_module
from framesmith_aten.graphs.verify import verify


def compile_part(root: dict[str, Any], graph: fx.Graph, compiler: Compiler, role: Role) -> BoxedFn:
    """Verify `graph`, wrap it in a module and compile it."""
    verify(graph)
    inputs = [node.meta["val"] for node in graph.nodes if node.op == "placeholder"]
    run = compiler(new_lazy_module(root, graph), inputs, role)
    return raising_assumptions(run, graph.nodes)
