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
from framesmith_aot.trace.control_flow.bodies import (
    AtenBody,
    Run,
    TorchBody,
    current_tracer,
    draws_of,
    example_of,
    reuse_draws,
    trace_body,
)
from framesmith_aot.trace.control_flow.calls import Tensors
from framesmith_aot.trace.control_flow.gradients import (
    Saved,
    backward_of,
    is_differentiable,
    refuse_random,
    split,
    zeros_of,
)
from framesmith_aten.graphs import batched, control_flow
from framesmith_aten.layouts import is_dense
from framesmith_aten.tracing.tracer import GraphTracer


@dataclass(frozen=True)
class _Cond:
    """A choice between two bodies; `counts` as `cond` takes them."""

    bodies: tuple[TorchBody, TorchBody]
    counts: tuple[int, int]

    def recorded(self, condition: torch.Tensor, operands: Sequence[Any]) -> Tensors:
        return self._called(condition, operands, self._traced(operands))

    def recorded_with_draws(
        self, condition: torch.Tensor, operands: Sequence[Any]
    ) -> tuple[Tensors, tuple[Tensors, Tensors]]:
        """Record it; return its results, and what each branch draws: zeros for the one that is not taken."""
        bodies = self._traced(operands)
        count, drawn = len(bodies[0].results), tuple(one.drawn for one in bodies)
        if any(drawn):
            bodies = self._traced(operands, drawn)
        made, first, second = split(self._called(condition, operands, bodies), (count, len(drawn[0])))
        return made, (first, second)

    def _traced(self, operands: Sequence[Any], drawn: Sequence[Sequence[torch.Tensor]] = ()) -> list[AtenBody]:
        """Trace both branches. With what they have `drawn`, they give it after their results."""
        tracer = calls.tracer()
        shared, *captured = split(operands, self.counts)
        found: list[AtenBody] = []
        for taken, (body, own) in enumerate(zip(self.bodies, captured, strict=True)):
            run = _giving_draws(body.run_in, drawn[:taken], drawn[taken + 1 :]) if drawn else body.run_in
            strides = [one.stride() for one in found[0].results] if found else ()
            with torch.no_grad():
                found.append(trace_body(tracer, run, _examples(tracer, (*shared, *own)), strides))
        return found

    def _called(self, condition: torch.Tensor, operands: Sequence[Any], bodies: Sequence[AtenBody]) -> Tensors:
        shared, own, other = split(operands, self.counts)
        first, second = bodies
        counts = len(shared), len(own) + len(first.numbers)
        given = (condition, *shared, *own, *first.numbers, *other, *second.numbers)
        return calls.cond(calls.tracer(), bodies, counts, given)

    def gradients(
        self,
        condition: torch.Tensor,
        operands: Sequence[Any],
        draws: tuple[Tensors, Tensors],
        wants: Sequence[bool],
        grads: Tensors,
    ) -> list[Any]:
        """Return the gradients of those operands that are wanted; zeros for those of the branch that is not taken."""
        tracer = calls.tracer()
        shared = (*operands, *grads, *draws[0], *draws[1])
        examples = _examples(tracer, shared)
        strides = [_strides_of_gradient(one) for one in compress(examples, wants)]
        sizes = len(grads), len(draws[0])
        first, second = (
            trace_body(tracer, self._backward(taken, wants, sizes), examples, strides) for taken in (True, False)
        )
        numbers = (*first.numbers, *second.numbers)
        counts = len(shared), len(first.numbers)
        left = iter(calls.cond(tracer, (first, second), counts, (condition, *shared, *numbers)))
        return [next(left) if on else None for on in wants]

    def _backward(
        self, taken: bool, wants: Sequence[bool], sizes: tuple[int, int]
    ) -> Callable[..., list[torch.Tensor]]:
        """Return the backward pass of a branch, of all operands, the gradients of the results, and all draws."""
        count = len(wants)
        shared, true, false = split(range(count), self.counts)
        own = [*shared, *(true if taken else false)]
        step = backward_of(self.bodies[0 if taken else 1].run_in, [wants[at] for at in own])

        def run(child: GraphTracer, args: Sequence[Any]) -> list[torch.Tensor]:
            grads, first, second = split(args[count:], sizes)
            reuse_draws(child, first if taken else second)
            found = iter(step(child, [args[at] for at in own], grads))
            of_own = {at: next(found) for at in own if wants[at]}
            return [of_own[at] if at in of_own else torch.zeros_like(args[at]) for at in range(count) if wants[at]]

        return run


def _giving_draws(run: Run, before: Sequence[Sequence[Any]], after: Sequence[Sequence[Any]]) -> Run:
    """Return a branch that also gives what both draw: zeros for the other, which is `before` or `after` it."""

    def zeros(drawn: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        return [zeros_of(one) for each in drawn for one in each]

    def giving(child: GraphTracer, args: Sequence[Any]) -> list[torch.Tensor]:
        results = run(child, args)
        return [*results, *zeros(before), *draws_of(child), *zeros(after)]

    return giving


class _CondFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Cond, condition: torch.Tensor, *operands: Any) -> Tensors:
        results, (first, second) = call.recorded_with_draws(condition, operands)
        ctx.call, ctx.saved, ctx.drawn_first = call, Saved(ctx, (condition, *operands), (*first, *second)), len(first)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (condition, *operands), drawn = ctx.saved.read(ctx)
        draws = drawn[: ctx.drawn_first], drawn[ctx.drawn_first :]
        return None, None, *ctx.call.gradients(condition, operands, draws, ctx.needs_input_grad[2:], grads)


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
    if batched.is_batched():
        return batched.cond(
            lambda bodies, below: cond(*bodies, counts, *below), (when_true, when_false), counts, condition, operands
        )
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
