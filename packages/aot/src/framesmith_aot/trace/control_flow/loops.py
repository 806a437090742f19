"""Scans in the trace, and their gradients: scans the other way, whose body is the backward pass of a step.

Note [Gradients of scans]: a step's backward pass runs the step again, on what it began with: carried values, slices and
captured values. A scan carries gradients of the carried values, and sums of those of captured values; its results are
gradients of the slices. In training the forward scan also returns stacks of the carried values that its steps began
with; of an associative scan the results themselves are these.
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
    example_of,
    new_tensor,
    slice_of,
    trace_body,
)
from framesmith_aot.trace.control_flow.calls import Tensors
from framesmith_aot.trace.control_flow.gradients import Backward, Saved, backward_of, is_differentiable, split, zeros_of
from framesmith_aten.graphs import control_flow
from framesmith_aten.tracing.tracer import GraphTracer


@dataclass(frozen=True)
class _Scan:
    """A scan: `counts` of carried values and of the tensors that are sliced."""

    body: TorchBody
    counts: tuple[int, int]
    reverse: bool

    def recorded(self, operands: Sequence[Any], history: bool) -> Tensors:
        """Record the scan; with `history`, it also gives stacks of the carried values that its steps begin with."""
        tracer = calls.tracer()
        carried, xs, captured = split(operands, self.counts)
        before = [example_of(tracer, one) for one in carried]
        examples = [*before, *(slice_of(tracer, one) for one in xs), *(example_of(tracer, one) for one in captured)]

        def run(child: GraphTracer, args: Sequence[Any]) -> list[torch.Tensor]:
            return [*self.body.run_in(child, args), *(args[: len(carried)] if history else ())]

        with torch.no_grad():
            traced = trace_body(tracer, run, examples, [one.stride() for one in before])
        return calls.scan(tracer, traced, self.reverse, carried, xs, captured)

    def gradients(self, operands: Sequence[Any], history: Tensors, wants: Sequence[bool], grads: Tensors) -> list[Any]:
        """Return the gradients of those operands that are wanted."""
        tracer = calls.tracer()
        carried, xs, captured = split(operands, self.counts)
        flows = [*map(is_differentiable, carried)]
        wants = [*flows, *wants[len(carried) :]]
        into, arriving = grads[: len(carried)], [grad for grad in grads[len(carried) :] if is_differentiable(grad)]
        came = [calls.in_strides(grad, one.stride()) for grad, one in compress(zip(into, carried, strict=True), flows)]
        sums = [zeros_of(one) for one in compress(captured, wants[len(carried) + len(xs) :])]
        step = _BackwardStep(
            backward_of(self.body.run_in, wants),
            [*map(is_differentiable, grads)],
            (len(came), len(sums), len(arriving), len(carried), len(xs)),
        )
        moving, sliced = [*came, *sums], [*arriving, *history, *xs]
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
    the other results, then what the step began with: carried values, slices, captured values.
    """

    step: Backward
    has_grad: Sequence[bool]
    sizes: tuple[int, int, int, int, int]

    def run(self, child: GraphTracer, args: Sequence[Any]) -> list[torch.Tensor]:
        came, sums, arriving, before, slices, captured = split(args, self.sizes)
        left = iter((*came, *arriving))
        given = [next(left) if on else None for on in self.has_grad]
        found = self.step(child, [*before, *slices, *captured], given)
        onward, of_xs, added = split(found, (len(came), len(found) - len(came) - len(sums)))
        return [*onward, *(one + other for one, other in zip(sums, added, strict=True)), *of_xs]


class _ScanFunction(torch.autograd.Function):
    """See Note [Gradients of scans]."""

    @staticmethod
    def forward(ctx: Any, scan: _Scan, *operands: Any) -> Tensors:
        made = scan.recorded(operands, history=True)
        results = made[: len(made) - scan.counts[0]]
        ctx.scan, ctx.saved = scan, Saved(ctx, operands, made[len(results) :])
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

    def gradients(self, operands: Sequence[Any], results: Tensors, wants: Sequence[bool], grads: Tensors) -> list[Any]:
        """Return the gradients of those operands that are wanted.

        The gradient of the first result, with what the others give, is that of the first slice.
        """
        xs, captured = split(operands, (self.count,))
        first, others, before = (
            (-1, slice(None, -1), slice(1, None)) if self.reverse else (0, slice(1, None), slice(None, -1))
        )
        moving = _Scan(_Joined(self.body, self.count), (self.count, self.count), self.reverse)
        nothing = [zeros_of(one[first]) for one in xs]
        inner = [*nothing, *(x[others] for x in xs), *captured]
        history = tuple(one[before] for one in results)
        flows = [*map(is_differentiable, xs)]
        found = moving.gradients(inner, history, [*flows, *wants], (*nothing, *(grad[others] for grad in grads)))
        of_first, of_others, of_captured = split(found, (self.count, self.count))
        made: list[Any] = []
        for on, grad, came, rest_of in zip(wants, grads, of_first, of_others, strict=False):
            parts = ((came + grad[first]).unsqueeze(0), rest_of) if on else ()
            made.append(torch.cat(parts[::-1] if self.reverse else parts) if on else None)
        return [*made, *of_captured]


@dataclass(frozen=True)
class _Joined:
    """The body of a scan that joins slices: each step's results are carried on, and given."""

    body: TorchBody
    count: int

    def run_in(self, tracer: GraphTracer, args: Sequence[Any]) -> list[Any]:
        joined = self.body.run_in(tracer, args)
        return [*joined, *joined]


class _AssociativeScanFunction(torch.autograd.Function):
    """See Note [Gradients of scans]."""

    @staticmethod
    def forward(ctx: Any, scan: _AssociativeScan, *operands: Any) -> Tensors:
        results, flags = scan.recorded_with_flags(operands)
        ctx.mark_non_differentiable(*(one for one, on in zip(results, flags, strict=True) if not on))
        ctx.scan, ctx.saved = scan, Saved(ctx, operands, results)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        operands, results = ctx.saved.read(ctx)
        return None, *ctx.scan.gradients(operands, results, ctx.needs_input_grad[1:], grads)


_scan: Callable[..., Tensors] = _ScanFunction.apply
_associative_scan: Callable[..., Tensors] = _AssociativeScanFunction.apply


def scan(body: TorchBody, counts: tuple[int, int], reverse: bool, *operands: Any) -> Tensors:
    """The same as a node of the traced graph."""
    if current_tracer() is None:
        return control_flow.scan(body, counts, reverse, *operands)  # type: ignore[arg-type]
    call = _Scan(body, counts, reverse)
    return _scan(call, *operands) if calls.records_gradients(operands) else call.recorded(operands, history=False)


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
