"""How calls of numbers are traced: those of the torch-level graph, one by one, and what tensors tell of their data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx

from framesmith_aten.symbolic import is_symbolic
from framesmith_aten.tracing.tracer import GraphTracer

#: Where nodes of torch-level graphs keep what they gave when they were made.
EXAMPLE = "example_value"


def call(tracer: GraphTracer, node: fx.Node, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What a call of a function of numbers gives. What its expression does not tell is a node of its own."""
    function: Any = node.target
    known = node.meta.get(EXAMPLE)
    out = known if is_symbolic(known) else function(*args, **kwargs)
    if not is_symbolic(out):
        return out
    if isinstance(out, torch.SymFloat) and not tracer.numbers.is_opaque(out):
        out = out.node.shape_env.create_unbacked_symfloat()  # the order of the program counts: see 0015
    tracer.call_number(function, args, dict(kwargs), out)
    return out


def note_result(tracer: GraphTracer, node: fx.Node, result: Any) -> None:
    """Symbols that a call has made of data are those that it made when the graph was captured."""
    if not node.meta or (known := node.meta.get(EXAMPLE)) is None:
        return
    for old, new in _pairs(known, result):
        _rename(tracer, new, old)


def _pairs(known: Any, result: Any) -> Iterator[tuple[Any, Any]]:
    """What is symbolic in both of two results of a call, number by number."""
    if isinstance(known, (list, tuple)) and isinstance(result, (list, tuple)):
        for one, two in zip(known, result, strict=False):
            yield from _pairs(one, two)
    elif isinstance(known, torch.Tensor) and isinstance(result, torch.Tensor):
        yield from _pairs(tuple(known.shape), tuple(result.shape))
    elif is_symbolic(known) and is_symbolic(result):
        yield known, result


def _rename(tracer: GraphTracer, new: Any, old: Any) -> None:
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    mine, theirs = new.node.expr, old.node.expr
    if mine == theirs or not (mine.is_Symbol and theirs.is_Symbol):
        return
    if free_unbacked_symbols(mine) and free_unbacked_symbols(theirs):
        new.node.shape_env._rename_unbacked_to(mine, theirs)
        tracer.numbers.rename(mine, theirs)
