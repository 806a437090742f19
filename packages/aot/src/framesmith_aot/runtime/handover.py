"""Hands one finished graph to the compiler below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from framesmith_aot.trace.numbers import ASSUMED, is_assumption
from framesmith_aten.contract import AssumptionFailed, BoxedFn, Compiler, Role
from framesmith_aten.graphs.modules import new_lazy_module
from framesmith_aten.graphs.verify import verify


def compile_part(root: dict[str, Any], graph: fx.Graph, compiler: Compiler, role: Role) -> BoxedFn:
    """Verifies `graph`, wraps it in a module and compiles it."""
    verify(graph)
    inputs = [node.meta["val"] for node in graph.nodes if node.op == "placeholder"]
    run = compiler(new_lazy_module(root, graph), inputs, role)
    return _telling(run) if any(map(is_assumption, graph.nodes)) else run


def _telling(run: BoxedFn) -> BoxedFn:
    """`run`, whose failed assumptions are an error of their own."""

    def told(args: list[Any]) -> Sequence[Any]:
        try:
            return run(args)
        except RuntimeError as error:
            if not str(error).startswith(ASSUMED):
                raise
            raise AssumptionFailed(str(error).removeprefix(ASSUMED)) from error

    return told
