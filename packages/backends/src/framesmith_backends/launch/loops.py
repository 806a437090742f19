"""Calls of control flow in a launcher: bodies are compiled as graphs of their own, and run from Python.

A scan whose results have known sizes allocates them once: each step writes into its slices, which its body takes after
its operands. Other loops are those of `framesmith_aten.graphs.control_flow`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from framesmith_aten.contract import BoxedFn
from framesmith_aten.graphs import control_flow
from framesmith_aten.graphs.control_flow import BODIES, bodies_of
from framesmith_aten.graphs.modules import new_module
from framesmith_aten.graphs.numbers import insertion_point
from framesmith_aten.symbolic import has_symbols
from framesmith_guards.torch_adapter import aten

Allocate = Sequence[Callable[[], torch.Tensor]]
CompileBody = Callable[[fx.GraphModule], BoxedFn]
"""Compiles a body as an inference graph."""


def runner(node: fx.Node, compile_body: CompileBody) -> Callable[..., Any]:
    """Return the function of a call's settings and operands, with compiled bodies."""
    bodies = bodies_of(node)
    if node.target in (control_flow.scan, control_flow.associative_scan):
        counts: Any = node.args[1]
        carries = counts[0] if node.target is control_flow.scan else 0
        stacks = node.meta["val"][carries:]
        if stacks and not any(map(has_symbols, stacks)):
            step = compile_body(_writing(bodies[0], carries))
            return functools.partial(_SCANS[node.target], step, [_allocating(one) for one in stacks])
    target: Any = node.target
    return functools.partial(target, *(_unboxed(compile_body(body)) for body in bodies))


def operands_of(node: fx.Node) -> Sequence[Any]:
    """Return the arguments of a call after its bodies."""
    return node.args[BODIES[node.target] :]


def _unboxed(run: BoxedFn) -> Callable[..., tuple[Any, ...]]:
    return lambda *args: tuple(run([*args]))


def _allocating(stack: torch.Tensor) -> Callable[[], torch.Tensor]:
    return functools.partial(torch.empty, stack.shape, dtype=stack.dtype, device=stack.device)


def _writing(body: fx.GraphModule, carries: int) -> fx.GraphModule:
    """Return a body that writes its results after the carried values into tensors, which it takes last."""
    graph = fx.Graph()
    results: Any = graph.graph_copy(body.graph, {})
    graph.output(tuple(results[:carries]))
    output = graph.output_node()
    last = next((node for node in reversed(graph.nodes) if node.op == "placeholder"), None)
    for at, result in enumerate(results[carries:]):
        value = result.meta["val"]
        with graph.inserting_before(next(iter(graph.nodes)) if last is None else insertion_point(last)):
            target = last = graph.placeholder(f"target_{at}")
        with value.fake_mode:
            target.meta["val"] = torch.empty(value.shape, dtype=value.dtype, device=value.device)
        with graph.inserting_before(output):
            write = graph.call_function(aten.copy_.default, (target, result))
        write.meta = {**result.meta, "val": target.meta["val"]}
    return new_module(body, graph)


def _scan(
    step: BoxedFn,
    allocate: Allocate,
    counts: tuple[int, int],
    reverse: bool,
    *operands: Any,
) -> tuple[torch.Tensor, ...]:
    carries, sliced = counts
    carried: Sequence[Any] = operands[:carries]
    xs, captured = operands[carries:][:sliced], operands[carries + sliced :]
    stacks = [make() for make in allocate]
    for slices, targets in _steps(xs, stacks, reverse):
        carried = step([*carried, *slices, *captured, *targets])
    return (*carried, *stacks)


def _associative_scan(
    step: BoxedFn, allocate: Allocate, count: int, reverse: bool, *operands: Any
) -> tuple[torch.Tensor, ...]:
    xs, captured = operands[:count], operands[count:]
    stacks = [make() for make in allocate]
    before: Sequence[torch.Tensor] = ()
    for slices, targets in _steps(xs, stacks, reverse):
        if before:
            step([*before, *slices, *captured, *targets])
        else:
            for target, one in zip(targets, slices, strict=True):
                target.copy_(one)
        before = targets
    return tuple(stacks)


def _steps(
    xs: Sequence[torch.Tensor], stacks: Sequence[torch.Tensor], reverse: bool
) -> Iterator[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]]:
    """Yield the slices of operands and of results, step by step."""
    slices, targets = (list(zip(*(one.unbind() for one in some), strict=True)) for some in (xs, stacks))
    pairs = zip(slices, targets, strict=True)
    return reversed([*pairs]) if reverse else pairs


_SCANS: dict[Any, Callable[..., Any]] = {
    control_flow.scan: _scan,
    control_flow.associative_scan: _associative_scan,
}
