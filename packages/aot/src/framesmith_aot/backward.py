"""The backward pass of a compiled graph: compiled when first needed, for the gradients that came."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from framesmith_aot.contracts import BoxedFn, Compiler
from framesmith_aot.errors import DoubleBackwardError
from framesmith_aot.handover import compile_part
from framesmith_aot.tangents import as_expected, without_tangents

Grads = tuple[torch.Tensor | None, ...]


class BackwardPass:
    """Runs `graph` (saved tensors, then tangents -> gradients) through `compiler`.

    `places[i]` is the position among the graph's outputs of the gradient of input i, None for none.
    One program is compiled for each pattern of absent tangents that occurs.
    """

    def __init__(
        self, graph: fx.Graph, saved: int, places: Sequence[int | None], root: Any, compiler: Compiler
    ) -> None:
        self.graph = graph
        self.places = tuple(places)
        self._root = root
        self._compiler = compiler
        self._programs: dict[tuple[bool, ...], tuple[BoxedFn | None, tuple[int | None, ...]]] = {}
        self._lock = threading.Lock()
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self._tangents = placeholders[saved:]
        vals = [node.meta["val"] for node in self._tangents]
        self._layouts = [(tuple(val.shape), tuple(val.stride())) for val in vals]

    def __call__(self, saved: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]) -> Grads:
        """The gradients of all inputs. They are not differentiable again: that raises DoubleBackwardError."""
        if torch.is_grad_enabled() or torch._C._is_any_autocast_enabled():
            with torch.no_grad(), torch._C._DisableAutocast():
                grads = self._run(saved, tangents)
            return _refuse_derivative(grads) if torch.is_grad_enabled() else grads
        return self._run(saved, tangents)

    def evaluate(self, saved: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]) -> Grads:
        """The gradients computed by torch's own operators, one by one: what a tracer of the backward pass runs."""
        pattern = tuple(tangent is None for tangent in tangents)
        graph, places = self._specialised(pattern)
        if all(place is None for place in places):
            return (None,) * len(places)
        args = [*saved, *self._expected(tangents)]
        out = fx.Interpreter(fx.GraphModule(self._root, graph)).run(*args)
        return tuple([None if place is None else out[place] for place in places])

    def _run(self, saved: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]) -> Grads:
        pattern = tuple(tangent is None for tangent in tangents)
        program = self._programs.get(pattern)
        if program is None:
            with self._lock:
                program = self._programs.get(pattern) or self._compile(pattern)
                self._programs[pattern] = program
        run, places = program
        if run is None:
            return (None,) * len(places)
        out = run([*saved, *self._expected(tangents)])
        return tuple([None if place is None else out[place] for place in places])

    def _expected(self, tangents: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """The tangents that came, with the strides the graph was traced with."""
        pairs = zip(tangents, self._layouts, strict=True)
        return [as_expected(tangent, *layout) for tangent, layout in pairs if tangent is not None]

    def _specialised(self, pattern: tuple[bool, ...]) -> tuple[fx.Graph, tuple[int | None, ...]]:
        """The graph without the tangents that are absent, and the places of the gradients among its outputs."""
        if not any(pattern):
            return self.graph, self.places
        absent = [node for node, missing in zip(self._tangents, pattern, strict=True) if missing]
        graph, moved = without_tangents(self.graph, absent)
        return graph, tuple(None if place is None else moved[place] for place in self.places)

    def _compile(self, pattern: tuple[bool, ...]) -> tuple[BoxedFn | None, tuple[int | None, ...]]:
        graph, places = self._specialised(pattern)
        if all(place is None for place in places):
            return None, places
        return compile_part(self._root, graph, self._compiler, "backward"), places


class _NotDifferentiable(torch.autograd.Function):
    """Passes gradients through; its own derivative is an error."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple([grad.view_as(grad) for grad in grads])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise DoubleBackwardError


_not_differentiable: Callable[..., tuple[torch.Tensor, ...]] = _NotDifferentiable.apply


def _refuse_derivative(grads: Grads) -> Grads:
    present = [grad for grad in grads if grad is not None]
    if not present:
        return grads
    anchor = torch.zeros((), requires_grad=True)
    marked = iter(_not_differentiable(anchor, *present))
    return tuple([None if grad is None else next(marked) for grad in grads])
