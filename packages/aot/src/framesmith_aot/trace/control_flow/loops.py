"""Scans in the trace, and their gradients: scans the other way, whose body is the backward pass of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from framesmith_aot.trace.control_flow import calls
from framesmith_aot.trace.control_flow.bodies import TorchBody, current_tracer, example_of, slice_of, trace_body
from framesmith_aten.graphs import control_flow


def scan(body: TorchBody, counts: tuple[int, int], reverse: bool, *operands: Any) -> tuple[torch.Tensor, ...]:
    """The same as a node of the traced graph."""
    tracer = current_tracer()
    if tracer is None or calls.records_gradients(operands):
        return control_flow.scan(body, counts, reverse, *operands)  # type: ignore[arg-type]
    carries, sliced = counts
    carried, xs, captured = operands[:carries], operands[carries:][:sliced], operands[carries + sliced :]
    before = [example_of(tracer, one) for one in carried]
    examples = [*before, *(slice_of(tracer, one) for one in xs), *(example_of(tracer, one) for one in captured)]
    with torch.no_grad():
        traced = trace_body(tracer, body.run_in, examples, [one.stride() for one in before])
    return calls.scan(tracer, traced, reverse, carried, xs, captured)


def associative_scan(body: TorchBody, count: int, reverse: bool, *operands: Any) -> tuple[torch.Tensor, ...]:
    """The same as a node of the traced graph."""
    tracer = current_tracer()
    if tracer is None or calls.records_gradients(operands):
        return control_flow.associative_scan(body, count, reverse, *operands)  # type: ignore[arg-type]
    xs, captured = operands[:count], operands[count:]
    examples = [*(slice_of(tracer, one) for one in (*xs, *xs)), *(example_of(tracer, one) for one in captured)]
    with torch.no_grad():
        traced = trace_body(tracer, body.run_in, examples)
    return calls.associative_scan(tracer, traced, reverse, xs, captured)


#: The functions of nodes, and the functions that are traced in their place.
REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    control_flow.scan: scan,
    control_flow.associative_scan: associative_scan,
}
