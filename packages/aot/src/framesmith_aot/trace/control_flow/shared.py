"""Calls of shared bodies in the trace, as nodes: the body is traced once, and so is its backward pass.

Note [Shared bodies]: `framesmith_aot.shared_bodies` traces a body as a graph of its own, and partitions it. Each call
is a node of the forward graph, which also gives what the backward pass reads, and one of the backward graph. Autograd
sees a Function that saves that. A body that this does not describe is run in place, as if it were not shared.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import fx

from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace import functional
from framesmith_aot.trace.control_flow import calls
from framesmith_aot.trace.control_flow.bodies import AtenBody, TorchBody, current_tracer, example_of, new_tensors
from framesmith_aten.graphs import control_flow
from framesmith_aten.symbolic import as_expressions
from framesmith_aten.tracing.tracer import GraphTracer
from framesmith_guards.contexts import ambient

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class BackwardBody:
    """The backward pass of a shared body.

    It takes the tensors that are `saved`, the `numbers` (positions of operands), then gradients of the `results` with
    the layouts of `tangents`. `saved` are positions of operands, or, behind these, of what the forward body returns.
    `positions`: for each operand the position of its gradient among the results, or None.
    """

    body: AtenBody
    saved: Sequence[int]
    numbers: Sequence[int]
    results: Sequence[int]
    tangents: Sequence[torch.Tensor]
    positions: Sequence[int | None]


@dataclass(frozen=True)
class SharedBody:
    """A shared body: the first `results` that the forward body returns are the user's."""

    forward: AtenBody
    results: int
    backward: BackwardBody | None


TraceShared = Callable[[fx.GraphModule, Sequence[Any], GraphTracer], SharedBody | None]
"""Traces a body on examples of its operands, with gradients where grad mode is on; None: it has to run in place."""


class _Shared:
    """The shared bodies of one trace."""

    def __init__(self, trace: TraceShared) -> None:
        self.trace = trace
        self.known: dict[Hashable, SharedBody | None] = {}


_of_tracer: WeakKeyDictionary[GraphTracer, _Shared] = WeakKeyDictionary()


def share_bodies(tracer: GraphTracer, trace: TraceShared) -> None:
    """Let this tracer record calls of shared bodies as nodes."""
    _of_tracer[tracer] = _Shared(trace)


def invoke_subgraph(body: TorchBody, *operands: Any) -> Tensors:
    """The same as a node of the traced graph."""
    tracer = current_tracer()
    bodies = None if tracer is None else _of_tracer.get(tracer)
    if tracer is None or bodies is None:
        return control_flow.invoke_subgraph(body, *operands)  # type: ignore[arg-type]
    shared = _shared(bodies, tracer, body, operands)
    if shared is None:
        return tuple(body.run_in(tracer, operands))
    if shared.backward is None:
        return _recorded(tracer, shared.forward, operands)[: shared.results]
    made: Tensors = _Call.apply(shared, shared.backward, *operands)  # type: ignore[no-untyped-call]
    return made


def _shared(bodies: _Shared, tracer: GraphTracer, body: Any, operands: Sequence[Any]) -> SharedBody | None:
    """Return what a body was traced to for operands of these layouts, in these modes."""
    key = body.module, ambient.read(), tuple([_described(one) for one in operands])
    if key not in bodies.known:
        examples = [_example(tracer, one) for one in operands]
        with ambient.preserved() as state, functional.below(), unstable.disable_current_modes():
            ambient.write(state)
            bodies.known[key] = bodies.trace(body.module, examples, tracer)
    return bodies.known[key]


def _described(value: Any) -> Hashable:
    if not isinstance(value, torch.Tensor):
        return type(value), as_expressions(value)
    layout = as_expressions(value.shape), as_expressions(value.stride()), value.dtype, value.device
    return *layout, value.requires_grad, value.is_conj(), value.is_neg()


def _example(tracer: GraphTracer, value: Any) -> Any:
    """Return a fake like an operand: no leaf, as a body that writes to one is not shared."""
    example = example_of(tracer, value)
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return example
    with functional.below(), unstable.disable_current_modes(), tracer.fake_mode, torch.enable_grad():
        return example.requires_grad_().view_as(example)


def _recorded(tracer: GraphTracer, body: AtenBody, operands: Sequence[Any]) -> Tensors:
    results = new_tensors(tracer, body.results)
    return calls.record(tracer, control_flow.invoke_subgraph, [body], (), operands, results)


class _Call(torch.autograd.Function):
    """See Note [Shared bodies]."""

    @staticmethod
    def forward(ctx: Any, shared: SharedBody, backward: BackwardBody, *operands: Any) -> Tensors:
        made = _recorded(_tracer(), shared.forward, operands)
        results, values = made[: shared.results], (*operands, *made)
        ctx.save_for_backward(*(values[at] for at in backward.saved))
        ctx.backward, ctx.numbers = backward, [operands[at] for at in backward.numbers]
        ctx.mark_non_differentiable(*(one for at, one in enumerate(results) if at not in backward.results))
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        backward: BackwardBody = ctx.backward
        tangents = [
            calls.in_strides(grads[at], like.stride())
            for at, like in zip(backward.results, backward.tangents, strict=True)
        ]
        found = _recorded(_tracer(), backward.body, (*ctx.saved_tensors, *ctx.numbers, *tangents))
        return None, None, *(None if at is None else found[at] for at in backward.positions)


def _tracer() -> GraphTracer:
    tracer = current_tracer()
    assert tracer is not None, "a shared body is recorded by the tracer that traced it"
    return tracer
