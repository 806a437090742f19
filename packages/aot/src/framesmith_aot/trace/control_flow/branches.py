"""`cond` and `while_loop` in the trace, and their gradients.

Note [Gradients of a while loop]: how often a loop ran is known from its iterations alone. Saved histories would be
stacks of unbacked length; its backward node runs the loop again instead, and holds what the iterations began with while
it runs. The gradient of `cond` is a `cond` of the branches' backward passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch

from framesmith_aot.trace.control_flow import calls
from framesmith_aot.trace.control_flow.bodies import AtenBody, TorchBody, current_tracer, example_of, trace_body
from framesmith_aot.trace.control_flow.calls import Tensors
from framesmith_aot.trace.control_flow.gradients import (
    Saved,
    backward_of,
    is_differentiable,
    refuse_random,
    split,
    zeros_of,
)
from framesmith_aten.graphs import control_flow
from framesmith_aten.layouts import is_dense
from framesmith_aten.tracing.tracer import GraphTracer


@dataclass(frozen=True)
class _Cond:
    """A choice between two bodies; `counts` as `cond` takes them."""

    bodies: tuple[TorchBody, TorchBody]
    counts: tuple[int, int]

    def recorded(self, condition: torch.Tensor, operands: Sequence[Any]) -> Tensors:
        tracer = calls.tracer()
        shared, own, other = split(operands, self.counts)
        with torch.no_grad():
            first = trace_body(tracer, self.bodies[0].run_in, _examples(tracer, (*shared, *own)))
            strides = [one.stride() for one in first.results]
            second = trace_body(tracer, self.bodies[1].run_in, _examples(tracer, (*shared, *other)), strides)
        counts = len(shared), len(own) + len(first.numbers)
        given = (condition, *shared, *own, *first.numbers, *other, *second.numbers)
        return calls.cond(tracer, (first, second), counts, given)

    def gradients(
        self, condition: torch.Tensor, operands: Sequence[Any], wants: Sequence[bool], grads: Tensors
    ) -> list[Any]:
        """Return the gradients of those operands that are wanted; zeros for those of the branch that is not taken."""
        tracer = calls.tracer()
        examples = _examples(tracer, operands)
        strides = [_strides_of_gradient(one) for one in compress(examples, wants)]
        given = [*examples, *_examples(tracer, grads)]
        first, second = (trace_body(tracer, self._backward(taken, wants), given, strides) for taken in (True, False))
        shared = (*operands, *grads)
        numbers = (*first.numbers, *second.numbers)
        counts = len(shared), len(first.numbers)
        left = iter(calls.cond(tracer, (first, second), counts, (condition, *shared, *numbers)))
        return [next(left) if on else None for on in wants]

    def _backward(self, taken: bool, wants: Sequence[bool]) -> Callable[..., list[torch.Tensor]]:
        """Return the backward pass of a branch, of all operands and the gradients of the results."""
        count = len(wants)
        shared, true, false = split(range(count), self.counts)
        own = [*shared, *(true if taken else false)]
        step = backward_of(self.bodies[0 if taken else 1].run_in, [wants[at] for at in own])

        def run(child: GraphTracer, args: Sequence[Any]) -> list[torch.Tensor]:
            found = iter(step(child, [args[at] for at in own], args[count:]))
            of_own = {at: next(found) for at in own if wants[at]}
            return [of_own[at] if at in of_own else torch.zeros_like(args[at]) for at in range(count) if wants[at]]

        return run


class _CondFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Cond, condition: torch.Tensor, *operands: Any) -> Tensors:
        ctx.call, ctx.saved = call, Saved(ctx, (condition, *operands), ())
        return call.recorded(condition, operands)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (condition, *operands), _ = ctx.saved.read(ctx)
        return None, None, *ctx.call.gradients(condition, operands, ctx.needs_input_grad[2:], grads)


@dataclass(frozen=True)
class _WhileLoop:
    """A loop; `counts` as `while_loop` takes them."""

    holds: TorchBody
    body: TorchBody
    counts: tuple[int, int]

    def recorded(self, operands: Sequence[Any], record: Callable[..., Tensors] = calls.while_loop) -> Tensors:
        tracer = calls.tracer()
        bodies, given, counts = self._traced(tracer, operands)
        return record(tracer, bodies, counts, given)

    def _traced(
        self, tracer: GraphTracer, operands: Sequence[Any]
    ) -> tuple[tuple[AtenBody, AtenBody], list[Any], tuple[int, int]]:
        """Return both bodies, the operands with the numbers that they take, and the counts of these."""
        carried, by_holds, by_body = split(operands, self.counts)
        before = _examples(tracer, carried)
        with torch.no_grad():
            holds = trace_body(tracer, self.holds.run_in, [*before, *_examples(tracer, by_holds)])
            before = _examples(tracer, carried)
            strides = [one.stride() for one in before]
            body = trace_body(tracer, self.body.run_in, [*before, *_examples(tracer, by_body)], strides)
        given = [*carried, *by_holds, *holds.numbers, *by_body, *body.numbers]
        return (holds, body), given, (len(carried), len(by_holds) + len(holds.numbers))

    def gradients(self, operands: Sequence[Any], wants: Sequence[bool], grads: Tensors) -> list[Any]:
        """Return the gradients of those operands that are wanted: see Note [Gradients of a while loop]."""
        tracer = calls.tracer()
        carried, by_holds, by_body = split(operands, self.counts)
        _, of_holds, of_body = split(wants, self.counts)
        flows = [*map(is_differentiable, carried)]
        came = [calls.in_strides(grad, one.stride()) for grad, one in compress(zip(grads, carried, strict=True), flows)]
        sums = [zeros_of(one) for one in compress(by_body, of_body)]
        step = backward_of(self.body.run_in, [*flows, *of_body])

        def run(child: GraphTracer, args: Sequence[Any]) -> list[torch.Tensor]:
            came, sums, before, captured = split(args, (sum(flows), sum(of_body), len(carried)))
            left = iter(came)
            found = step(child, [*before, *captured], [next(left) if on else None for on in flows])
            added = found[len(came) :]
            return [*found[: len(came)], *(one + other for one, other in zip(sums, added, strict=True))]

        moving = [*came, *sums]
        examples = _examples(tracer, moving)
        strides = [one.stride() for one in examples]
        traced = trace_body(tracer, run, [*examples, *_examples(tracer, (*carried, *by_body))], strides)
        bodies, given, counts = self._traced(tracer, operands)
        refuse_random(bodies[0].module.graph)
        sizes = (*counts, len(given) - sum(counts), len(moving))
        found = calls.while_loop_gradients(tracer, (*bodies, traced), sizes, given, moving, by_body)
        left = iter(
            (*found[: len(came)], *(zeros_of(one) for one in compress(by_holds, of_holds)), *found[len(came) :])
        )
        return [next(left) if on else None for on in (*flows, *of_holds, *of_body)]


class _WhileLoopFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _WhileLoop, *operands: Any) -> Tensors:
        ctx.call, ctx.saved = call, Saved(ctx, operands, ())
        return call.recorded(operands)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        operands, _ = ctx.saved.read(ctx)
        return None, *ctx.call.gradients(operands, ctx.needs_input_grad[1:], grads)


def _examples(tracer: GraphTracer, values: Sequence[Any]) -> list[Any]:
    return [example_of(tracer, one) for one in values]


def _strides_of_gradient(example: torch.Tensor) -> Sequence[Any]:
    """Return the strides of a gradient of such a tensor: its own, where each element has a place of its own."""
    return example.stride() if is_dense(example.shape, example.stride()) else example.contiguous().stride()


_cond: Callable[..., Tensors] = _CondFunction.apply
_while_loop: Callable[..., Tensors] = _WhileLoopFunction.apply


def cond(
    when_true: TorchBody, when_false: TorchBody, counts: tuple[int, int], condition: Any, *operands: Any
) -> Tensors:
    """The same as a node of the traced graph."""
    if current_tracer() is None:
        return control_flow.cond(when_true, when_false, counts, condition, *operands)  # type: ignore[arg-type]
    call = _Cond((when_true, when_false), counts)
    if calls.records_gradients((condition, *operands)):
        return _cond(call, condition, *operands)
    return call.recorded(condition, operands)


def while_loop(holds: TorchBody, body: TorchBody, counts: tuple[int, int], *operands: Any) -> Tensors:
    """The same as a node of the traced graph."""
    if current_tracer() is None:
        return control_flow.while_loop(holds, body, counts, *operands)  # type: ignore[arg-type]
    call = _WhileLoop(holds, body, counts)
    return _while_loop(call, *operands) if calls.records_gradients(operands) else call.recorded(operands)


def while_loop_stack_output(holds: TorchBody, body: TorchBody, counts: tuple[int, int], *operands: Any) -> Tensors:
    """The same as a node of the traced graph; it has no gradients."""
    if current_tracer() is None:
        return control_flow.while_loop_stack_output(holds, body, counts, *operands)  # type: ignore[arg-type]
    return _WhileLoop(holds, body, counts).recorded(operands, calls.while_loop_stack_output)


#: The functions of nodes, and the functions that are traced in their place.
REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    control_flow.cond: cond,
    control_flow.while_loop: while_loop,
    control_flow.while_loop_stack_output: while_loop_stack_output,
}
