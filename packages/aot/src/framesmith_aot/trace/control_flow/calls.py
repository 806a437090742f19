"""Calls of control flow in the trace: nodes whose bodies and results are given."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

import torch

from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace import functional
from framesmith_aot.trace.control_flow.bodies import (
    AtenBody,
    Strides,
    current_tracer,
    laid_out,
    new_tensor,
    new_tensors,
)
from framesmith_aten.graphs import control_flow
from framesmith_aten.tracing.tracer import GraphTracer

Tensors = tuple[torch.Tensor, ...]


def tracer() -> GraphTracer:
    """Return the tracer of the trace that calls are recorded in."""
    found = current_tracer()
    assert found is not None, "control flow is recorded in a trace"
    return found


def records_gradients(operands: Sequence[Any]) -> bool:
    """Whether autograd records a call of these."""
    return torch.is_grad_enabled() and any(isinstance(one, torch.Tensor) and one.requires_grad for one in operands)


def record(
    tracer: GraphTracer,
    target: Any,
    bodies: Sequence[AtenBody],
    settings: Sequence[Any],
    operands: Sequence[Any],
    results: Sequence[torch.Tensor],
) -> Tensors:
    """Record a call, and return its results as functional tensors. `operands` are functional ones, and numbers."""
    values = [functional.current_value(one) if isinstance(one, torch.Tensor) else one for one in operands]
    tracer.call_bodies(target, [body.module for body in bodies], settings, values, results)
    return tuple(map(functional.wrap, results))


def scan(
    tracer: GraphTracer,
    body: AtenBody,
    reverse: bool,
    carried: Sequence[torch.Tensor],
    xs: Sequence[torch.Tensor],
    captured: Sequence[Any],
) -> Tensors:
    """Record a scan. The first results of the body have the layouts of `carried`."""
    xs, captured = _needed(body, carried, xs, captured)
    counts = len(carried), len(xs)
    last = new_tensors(tracer, body.results[: len(carried)])
    stacks = _stacks(tracer, body.results[len(carried) :], xs[0].shape[0])
    operands = (*carried, *xs, *captured, *body.numbers)
    return record(tracer, control_flow.scan, [body], (counts, reverse), operands, [*last, *stacks])


def _needed(
    body: AtenBody, carried: Sequence[torch.Tensor], xs: Sequence[torch.Tensor], captured: Sequence[Any]
) -> tuple[Sequence[torch.Tensor], Sequence[Any]]:
    """Return the slices and captured values that the body reads, the first of all slices if it reads none.

    The body takes no others then: what a gradient does not need is not saved for it.
    """
    graph = body.module.graph
    operands = graph.find_nodes(op="placeholder")[len(carried) :]
    read = [bool(operand.users) for operand in operands[: len(xs) + len(captured)]]
    read[0] = read[0] or not any(read[: len(xs)])
    for operand, on in zip(operands, read, strict=False):
        if not on:
            graph.erase_node(operand)
    body.module.recompile()
    return [*compress(xs, read)], [*compress(captured, read[len(xs) :])]


def associative_scan(
    tracer: GraphTracer, body: AtenBody, reverse: bool, xs: Sequence[torch.Tensor], captured: Sequence[Any]
) -> Tensors:
    stacks = _stacks(tracer, body.results, xs[0].shape[0])
    operands = (*xs, *captured, *body.numbers)
    return record(tracer, control_flow.associative_scan, [body], (len(xs), reverse), operands, stacks)


def cond(tracer: GraphTracer, bodies: Sequence[AtenBody], counts: tuple[int, int], operands: Sequence[Any]) -> Tensors:
    """Record a choice. The results of both bodies have the same layouts."""
    return record(tracer, control_flow.cond, bodies, (counts,), operands, new_tensors(tracer, bodies[0].results))


def while_loop(
    tracer: GraphTracer, bodies: Sequence[AtenBody], counts: tuple[int, int], operands: Sequence[Any]
) -> Tensors:
    """Record a loop. The results of its body have the layouts of what it carries."""
    return record(tracer, control_flow.while_loop, bodies, (counts,), operands, new_tensors(tracer, bodies[1].results))


def while_loop_stack_output(
    tracer: GraphTracer, bodies: Sequence[AtenBody], counts: tuple[int, int], operands: Sequence[Any]
) -> Tensors:
    """Record a loop that gives stacks."""
    with functional.below(), unstable.disable_current_modes():
        stacks = [*control_flow.stacks_of_iterations(bodies[1].results)]
    return record(tracer, control_flow.while_loop_stack_output, bodies, (counts,), operands, stacks)


def while_loop_gradients(
    tracer: GraphTracer,
    bodies: Sequence[AtenBody],
    counts: tuple[int, ...],
    of_loop: Sequence[Any],
    moving: Sequence[torch.Tensor],
    captured: Sequence[Any],
) -> Tensors:
    results = new_tensors(tracer, bodies[2].results)
    operands = (*of_loop, *moving, *captured, *bodies[2].numbers)
    return record(tracer, control_flow.while_loop_gradients, bodies, (counts,), operands, results)


def _stacks(tracer: GraphTracer, steps: Sequence[torch.Tensor], length: Any) -> list[torch.Tensor]:
    return [new_tensor(tracer, one, (length, *one.shape), None) for one in steps]


def in_strides(value: torch.Tensor, stride: Strides) -> torch.Tensor:
    """Return a functional tensor with these strides and this value."""
    return functional.wrap(laid_out(functional.current_value(value), stride))
