"""Scans in the trace, and their gradients: scans the other way, whose body is the backward pass of a step.

Note [Gradients of scans]: a step's backward pass runs the step again, on what it began with: carried values, slices and
captured values. A scan carries gradients of the carried values, and sums of those of captured values; its results are
gradients of the slices. In training the forward scan also returns stacks of the carried values that its steps began
with.

Note [Gradients of associative scans]: the results are what steps began with. Gradients are carried of the live results
alone: those that have gradients, and those that the gradients of live ones reach. The first slice is no step's result;
its gradient is that of the first result, which the body chooses, so that one scan has all slices.
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
    TorchBody,
    current_tracer,
    draws_of,
    example_of,
    new_tensor,
    reuse_draws,
    slice_of,
    trace_body,
)
from framesmith_aot.trace.control_flow.calls import Tensors
from framesmith_aot.trace.control_flow.gradients import (
    Backward,
    Saved,
    backward_of,
    flowing,
    is_differentiable,
    split,
    zeros_of,
)
from framesmith_aten.graphs import batched, control_flow
from framesmith_aten.tracing.tracer import GraphTracer


@dataclass(frozen=True)
class _Scan:
    """A scan: `counts` of carried values and of the tensors that are sliced."""

    body: TorchBody
    counts: tuple[int, int]
    reverse: bool

    def recorded(self, operands: Sequence[Any], history: bool) -> tuple[Tensors, Tensors]:
        """Record the scan, and return its results and its history.

        That is stacks of the carried values that its steps begin with, and of what they draw.
        """
        tracer = calls.tracer()
        carried, xs, captured = split(operands, self.counts)
        before = [example_of(tracer, one) for one in carried]
        examples = [*before, *(slice_of(tracer, one) for one in xs), *(example_of(tracer, one) for one in captured)]

        def run(child: GraphTracer, args: Sequence[Any]) -> list[torch.Tensor]:
            results = self.body.run_in(child, args)
            return [*results, *args[: len(carried)], *draws_of(child)] if history else [*results]

        strides = [one.stride() for one in before]
        with torch.no_grad():
            traced = trace_body(tracer, run, examples, strides)
        made = calls.scan(tracer, traced, self.reverse, carried, xs, captured)
        count = len(made) - len(carried) - len(traced.drawn) if history else len(made)
        return made[:count], made[count:]

    def gradients(self, operands: Sequence[Any], history: Tensors, wants: Sequence[bool], grads: Tensors) -> list[Any]:
        """Return the gradients of those operands that are wanted."""
        tracer = calls.tracer()
        carried, xs, captured = split(operands, self.counts)
        history, draws = split(history, (len(carried),))
        flows = [*map(is_differentiable, carried)]
        wants = [*flows, *wants[len(carried) :]]
        into, arriving = grads[: len(carried)], [grad for grad in grads[len(carried) :] if is_differentiable(grad)]
        came = [calls.in_strides(grad, one.stride()) for grad, one in compress(zip(into, carried, strict=True), flows)]
        sums = [zeros_of(one) for one in compress(captured, wants[len(carried) + len(xs) :])]
        step = _BackwardStep(
            backward_of(self.body.run_in, wants),
            [*map(is_differentiable, grads)],
            (len(came), len(sums), len(arriving), len(carried), len(xs), len(draws)),
        )
        moving, sliced = [*came, *sums], [*arriving, *history, *xs, *draws]
        examples = [*(example_of(tracer, one) for one in moving), *(slice_of(tracer, one) for one in sliced)]
        examples += [example_of(tracer, one) for one in captured]
        traced = trace_body(tracer, step.run, examples, [one.stride() for one in moving])
        made = calls.scan(tracer, traced, not self.reverse, moving, sliced, captured)
        first, of_captured, of_xs = split(made, (len(came), len(sums)))
        left = iter((*first, *of_xs, *of_captured))
        return [next(left) if on else None for on in wants]


@dataclass(frozen=True)
class _BackwardStep:
    """The body of a scan's backward pass. `has_grad`: which results of a step have gradients.

    `sizes`: of its operands, which are gradients of the carried values, sums of those of captured values, gradients of
    the other results, then what the step began with, carried values and slices, what it drew, and captured values.
    """

    step: Backward
    has_grad: Sequence[bool]
    sizes: tuple[int, int, int, int, int, int]

    def run(self, child: GraphTracer, args: Sequence[Any]) -> list[torch.Tensor]:
        came, sums, arriving, before, slices, draws, captured = split(args, self.sizes)
        reuse_draws(child, draws)
        left = iter((*came, *arriving))
        given = [next(left) if on else None for on in self.has_grad]
        found = self.step(child, [*before, *slices, *captured], given)
        onward, of_xs, added = split(found, (len(came), len(found) - len(came) - len(sums)))
        return [*onward, *(one + other for one, other in zip(sums, added, strict=True)), *of_xs]


class _ScanFunction(torch.autograd.Function):
    """See Note [Gradients of scans]."""

    @staticmethod
    def forward(ctx: Any, scan: _Scan, *operands: Any) -> Tensors:
        results, history = scan.recorded(operands, history=True)
        ctx.scan, ctx.saved = scan, Saved(ctx, operands, history)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        operands, history = ctx.saved.read(ctx)
        return None, *ctx.scan.gradients(operands, history, ctx.needs_input_grad[1:], grads)


@dataclass(frozen=True)
class _AssociativeScan:
    """An associative scan of the first `count` operands."""

    body: TorchBody
    count: int
    reverse: bool

    def recorded(self, operands: Sequence[Any]) -> Tensors:
        traced, _ = self._traced(operands, [False] * len(operands))
        return self._called(traced, operands)

    def recorded_with_flags(self, operands: Sequence[Any]) -> tuple[Tensors, list[bool]]:
        """Record it, and say which of the results require gradients."""
        wants = [isinstance(one, torch.Tensor) and one.requires_grad for one in operands]
        flags = wants[: self.count]
        while True:
            traced, found = self._traced(operands, [*flags, *wants])
            if found == flags:
                return self._called(traced, operands), flags
            flags = found

    def _traced(self, operands: Sequence[Any], wants: Sequence[bool]) -> tuple[AtenBody, list[bool]]:
        """Trace the body, and say which carried values require gradients after it, if those before `want` some."""
        tracer = calls.tracer()
        xs, captured = split(operands, (self.count,))
        slices = [slice_of(tracer, one) for one in xs]
        before = [new_tensor(tracer, one, one.shape, None) for one in slices]
        examples = [*before, *slices, *(example_of(tracer, one) for one in captured)]
        found = [*wants[: self.count]]

        def run(child: GraphTracer, args: Sequence[Any]) -> list[torch.Tensor]:
            for one, on in zip(args, wants, strict=False):
                if on:
                    one.requires_grad_()
            results = self.body.run_in(child, args)
            found[:] = [before or one.requires_grad for before, one in zip(found, results, strict=True)]
            return results

        with torch.set_grad_enabled(any(wants)):
            return trace_body(tracer, run, examples, [one.stride() for one in before]), found

    def _called(self, traced: AtenBody, operands: Sequence[Any]) -> Tensors:
        xs, captured = split(operands, (self.count,))
        return calls.associative_scan(calls.tracer(), traced, self.reverse, xs, captured)

    def gradients(
        self, operands: Sequence[Any], results: Tensors, wants: Sequence[bool], grads: Sequence[torch.Tensor | None]
    ) -> list[Any]:
        """Return the gradients of those operands that are wanted. See Note [Gradients of associative scans]."""
        xs, captured = split(operands, (self.count,))
        arriving = [grad for grad in grads if grad is not None]
        length, (first, rest) = xs[0].shape[0], (-1, slice(1, None)) if self.reverse else (0, slice(None, -1))
        begins = torch.arange(length, device=xs[0].device) == (length - 1 if self.reverse else 0)
        history = [_shifted(one[rest], zeros_of(one[first]), self.reverse) for one in results]
        sums = [zeros_of(one) for one in compress(captured, wants[self.count :])]
        live = [grad is not None for grad in grads]
        while True:
            step = _JoinBackward(self.body, wants, [grad is not None for grad in grads], live)
            moving = [*(zeros_of(one[first]) for one in compress(xs, live)), *sums]
            sliced = [*arriving, begins, *history, *xs]
            traced = step.traced(moving, sliced, captured)
            if step.reached == live:
                break
            live = step.reached
        made = calls.scan(calls.tracer(), traced, not self.reverse, moving, sliced, captured)
        _, of_captured, of_xs = split(made, (sum(live), len(sums)))
        left = (grad if arrives else None for grad, arrives in zip((*of_xs, *of_captured), step.arrives, strict=True))
        return [next(left) if on else None for on in wants]


def _shifted(rest: torch.Tensor, start: torch.Tensor, reverse: bool) -> torch.Tensor:
    """Return the slices that lie before each one."""
    parts = (start.unsqueeze(0), rest)
    return torch.cat(parts[::-1] if reverse else parts)


class _JoinBackward:
    """The body of an associative scan's backward pass. `given`: which results have gradients; `live`: see the Note.

    Its operands are carried gradients, sums of those of captured values, gradients of the results, whether the slice
    is the first, results before it, slices, captured values.
    """

    def __init__(self, body: TorchBody, wants: Sequence[bool], given: Sequence[bool], live: Sequence[bool]) -> None:
        self.body, self.wants, self.given, self.live = body, wants, given, live
        self.reached = [*live]
        #: Whether a gradient comes to each operand that wants one.
        self.arrives: list[bool] = []

    def traced(self, moving: Sequence[Any], sliced: Sequence[Any], captured: Sequence[Any]) -> AtenBody:
        tracer = calls.tracer()
        examples = [*(example_of(tracer, one) for one in moving), *(slice_of(tracer, one) for one in sliced)]
        examples += [example_of(tracer, one) for one in captured]
        return trace_body(tracer, self.run, examples, [one.stride() for one in moving])

    def run(self, child: GraphTracer, args: Sequence[Any]) -> list[torch.Tensor]:
        count, carries = len(self.given), sum(self.live)
        sizes = carries, sum(self.wants[count:]), sum(self.given), 1, count, count
        came, sums, arriving, (begins,), before, slices, captured = split(args, sizes)
        totals = self._totals(came, arriving)
        flows = [*map(is_differentiable, before)]
        found = flowing(self.body.run_in, child, [*before, *slices, *captured], [*flows, *self.wants], totals)
        left = iter(found)
        onward = [next(left) if on else None for on in flows]
        of_xs = [next(left) if on else None for on in self.wants[:count]]
        self.reached = [on or grad is not None for on, grad in zip(self.live, onward, strict=True)]
        added = [*left]
        firsts = compress(zip(self.live, of_xs, strict=True), self.wants[:count])
        self.arrives = [*(on or grad is not None for on, grad in firsts), *(grad is not None for grad in added)]
        carried = [
            torch.zeros_like(one) if grad is None else grad
            for one, grad in compress(zip(before, onward, strict=True), self.live)
        ]
        summed = [
            one if grad is None else one + torch.where(begins, 0, grad) for one, grad in zip(sums, added, strict=True)
        ]
        given = [
            torch.where(begins, 0 if total is None else total, torch.zeros_like(x) if grad is None else grad)
            for x, total, grad in compress(zip(slices, totals, of_xs, strict=True), self.wants[:count])
        ]
        return [*carried, *summed, *given]

    def _totals(self, came: Sequence[torch.Tensor], arriving: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Return the gradient of each result of a step: of what comes from later steps, and of the result itself."""
        carried, own, found = iter(came), iter(arriving), list[torch.Tensor | None]()
        for is_live, has in zip(self.live, self.given, strict=True):
            total = next(carried) if is_live else None
            found.append(total + next(own) if total is not None and has else total)
        return found


class _AssociativeScanFunction(torch.autograd.Function):
    """See Note [Gradients of associative scans]."""

    @staticmethod
    def forward(ctx: Any, scan: _AssociativeScan, *operands: Any) -> Tensors:
        results, flags = scan.recorded_with_flags(operands)
        ctx.mark_non_differentiable(*(one for one, on in zip(results, flags, strict=True) if not on))
        ctx.scan, ctx.saved = scan, Saved(ctx, operands, results)
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        operands, results = ctx.saved.read(ctx)
        return None, *ctx.scan.gradients(operands, results, ctx.needs_input_grad[1:], grads)


_scan: Callable[..., Tensors] = _ScanFunction.apply
_associative_scan: Callable[..., Tensors] = _AssociativeScanFunction.apply


def scan(body: TorchBody, counts: tuple[int, int], reverse: bool, *operands: Any) -> Tensors:
    """The same as a node of the traced graph."""
    if batched.is_batched():
        return batched.scan(lambda bodies, below: scan(*bodies, counts, reverse, *below), body, counts, operands)
    if current_tracer() is None:
        return control_flow.scan(body, counts, reverse, *operands)  # type: ignore[arg-type]
    call = _Scan(body, counts, reverse)
    return _scan(call, *operands) if calls.records_gradients(operands) else call.recorded(operands, history=False)[0]


def associative_scan(body: TorchBody, count: int, reverse: bool, *operands: Any) -> Tensors:
    """The same as a node of the traced graph."""
    if current_tracer() is None:
        return control_flow.associative_scan(body, count, reverse, *operands)  # type: ignore[arg-type]
    call = _AssociativeScan(body, count, reverse)
    return _associative_scan(call, *operands) if calls.records_gradients(operands) else call.recorded(operands)


#: The functions of nodes, and the functions that are traced in their place.
REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    control_flow.scan: scan,
    control_flow.associative_scan: associative_scan,
}
