"""The backward pass of an autograd node, compiled when first needed, for the tangents that are present."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith_aot.partition.split import NodePart
from framesmith_aot.runtime.handover import compile_part
from framesmith_aot.runtime.tangents import without_tangents
from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace.output_groups import Operand
from framesmith_aten.contract import BoxedFn, Compiler, OnError
from framesmith_aten.graphs.detached import DetachedGraph, detach_graph
from framesmith_aten.graphs.modules import new_lazy_module
from framesmith_aten.graphs.nan_gradients import find_nan
from framesmith_aten.graphs.numbers import numbers_of
from framesmith_aten.layouts import dims_by_stride, has_stride, in_order, restride
from framesmith_aten.operators import view_written
from framesmith_aten.symbolic import has_symbols, is_symbolic
from framesmith_guards.torch_adapter import aten

Grads = tuple[torch.Tensor | None, ...]

#: The memory layout of a gradient: its strides (tuple), or, where they are symbolic, its dimensions by stride (list).
Layout = tuple[int, ...] | list[int]

#: A pattern of absent tangents, the program for it (None: there are no gradients), its gradients' positions.
OnProgram = Callable[[tuple[bool, ...], BoxedFn | None, tuple[int | None, ...]], None]


@dataclass(frozen=True)
class BackwardGraph:
    """`graph` takes `saved` saved tensors and numbers, then the tangents, and returns gradients.

    `positions` gives, for each of `operands`, the position of its gradient among the results (None: it has none). An
    operand has no gradient where none of the tangents that it can depend on is present.
    """

    graph: fx.Graph
    saved: int
    positions: tuple[int | None, ...]
    operands: tuple[Operand, ...]

    def tangents(self) -> list[fx.Node]:
        return [node for node in self.graph.nodes if node.op == "placeholder"][self.saved :]

    def without(self, absent: Sequence[bool]) -> BackwardGraph:
        """Return the smaller graph for a pattern of absent tangents."""
        if not any(absent):
            return self
        present = {index for index, missing in enumerate(absent) if not missing}
        left = [
            position if operand.reached & present else None
            for position, operand in zip(self.positions, self.operands, strict=True)
        ]
        wanted = sorted({position for position in left if position is not None})
        nodes = [node for node, missing in zip(self.tangents(), absent, strict=True) if missing]
        positions = tuple(None if position is None else wanted.index(position) for position in left)
        return BackwardGraph(without_tangents(self.graph, nodes, wanted), self.saved, positions, self.operands)


def backward_graph(part: NodePart) -> BackwardGraph:
    saved = len(part.saved) + len(part.late_inputs) + len(part.numbers)
    return BackwardGraph(part.graph, saved, tuple(part.grad_positions), part.shape.operands)


class BackwardPass:
    """Runs a backward graph through `compiler`: one program for each pattern of absent tangents that occurs.

    `root` holds the attributes that the graph reads. `on_program` is called with each program. With `on_error`, which
    is called with a failure to compile, the graph runs uncompiled.
    """

    def __init__(
        self, whole: BackwardGraph, root: dict[str, torch.Tensor], compiler: Compiler, on_error: OnError | None = None
    ) -> None:
        self._whole: BackwardGraph | None = whole
        self._detached: DetachedGraph | None = None
        self._signature = whole.saved, whole.positions, whole.operands
        self._root = root
        self._compiler = compiler
        self._on_error = on_error
        self._programs: dict[tuple[bool, ...], tuple[BoxedFn | None, tuple[int | None, ...]]] = {}
        self._modules: dict[tuple[bool, ...], tuple[fx.GraphModule, tuple[int | None, ...]]] = {}
        self._lock = threading.Lock()
        self.on_program: OnProgram | None = None
        tangents = [node.meta["val"] for node in whole.tangents()]
        self._layouts, self._devices = [*map(_layout, tangents)], [one.device for one in tangents]

    @property
    def whole(self) -> BackwardGraph:
        """The graph for all tangents, rehydrated where it was detached."""
        whole, detached = self._whole, self._detached
        if whole is not None:
            return whole
        assert detached is not None
        return BackwardGraph(detached.rehydrate(), *self._signature)

    @property
    def graph(self) -> fx.Graph:
        return self.whole.graph

    def tangents(self, pattern: Sequence[bool]) -> list[tuple[torch.device, Layout] | None]:
        """Return device and layout of each tangent of a pattern, None for the absent ones."""
        known = zip(pattern, self._devices, self._layouts, strict=True)
        return [None if absent else (device, layout) for absent, device, layout in known]

    def _detach_graph(self) -> None:
        """Detach the graph: once a program is compiled, only other patterns, tracers and torch.func need it."""
        if self._whole is not None:
            self._detached = detach_graph(self._whole.graph)
            if self._detached is not None:
                self._whole = None

    def prepare(self) -> None:
        """Compile the program for passes with all tangents now, rather than at the first pass."""
        pattern = (False,) * len(self._layouts)
        with self._lock:
            if pattern not in self._programs:
                self._programs[pattern] = self._compile(pattern)

    def __call__(self, saved: list[Any], tangents: Sequence[torch.Tensor | None]) -> Grads:
        """Return the gradients of all operands, without history; empty `saved`: tensors, then numbers."""
        run = self.evaluate if is_batched(tangents) else self._run
        if torch.is_grad_enabled() or unstable.is_any_autocast_enabled():
            with torch.no_grad(), unstable.DisableAutocast():
                return run(saved, tangents)
        return run(saved, tangents)

    def evaluate(self, saved: Sequence[Any], tangents: Sequence[torch.Tensor | None]) -> Grads:
        """Return the gradients by torch's own operators, for a tracer of the backward pass."""
        pattern = tuple(tangent is None for tangent in tangents)
        if pattern not in self._modules:
            part = self.whole.without(pattern)
            self._modules[pattern] = new_lazy_module(self._root, part.graph), part.positions
        module, positions = self._modules[pattern]
        if all(position is None for position in positions):
            return (None,) * len(positions)
        with unstable.DisableAutocast():
            out = _Differentiable(module).run(*saved, *self.expected(tangents))
        return tuple([None if position is None else out[position] for position in positions])

    def _run(self, saved: list[Any], tangents: Sequence[torch.Tensor | None]) -> Grads:
        pattern = tuple(tangent is None for tangent in tangents)
        program = self._programs.get(pattern)
        if program is None:
            with self._lock:
                program = self._programs.get(pattern)
                if program is None:
                    program = self._programs[pattern] = self._compile(pattern)
                    if self.on_program is not None:
                        self.on_program(pattern, *program)
        run, positions = program
        if run is None:
            return (None,) * len(positions)
        args = [*saved, *self.expected(tangents)]
        saved.clear()
        out = self._watched(pattern, run, args) if torch.is_anomaly_enabled() else run(args)
        return tuple([None if position is None else out[position] for position in positions])

    def _watched(self, pattern: tuple[bool, ...], run: BoxedFn, arguments: list[Any]) -> Sequence[Any]:
        """Run a program under anomaly detection."""
        out = run([*arguments])
        if torch.is_anomaly_check_nan_enabled():
            find_nan(new_lazy_module(self._root, self.whole.without(pattern).graph), arguments, out)
        return out

    def positions_without(self, absent: Sequence[bool]) -> tuple[int | None, ...]:
        """Return `BackwardGraph.positions` for a pattern of absent tangents, but None where a gradient is zero."""
        _, positions, operands = self._signature
        present = {index for index, missing in enumerate(absent) if not missing}
        pairs = zip(positions, operands, strict=True)
        return tuple([position if operand.reached & present else None for position, operand in pairs])

    def examples(self) -> tuple[list[Any], list[Any]]:
        """Return fakes like the saved tensors and the tangents, None for those without symbolic sizes or strides."""
        count = self._signature[0]
        if self._whole is None:  # it was detached, as graphs without symbols are
            return [None] * count, [None] * len(self._layouts)
        nodes = self._whole.graph.find_nodes(op="placeholder")
        values = [node.meta["val"] for node in nodes]
        found = [value if isinstance(value, torch.Tensor) and has_symbols(value) else None for value in values]
        return found[:count], found[count:]

    def expected(self, tangents: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """Return the present tangents with the strides of the trace, without lazy conjugates or negatives."""
        pairs = zip(tangents, self._layouts, strict=True)
        return [
            tangent if _is_expected(tangent, layout) else _with_layout(_materialised(tangent), layout)
            for tangent, layout in pairs
            if tangent is not None
        ]

    def _compiled(self, pattern: tuple[bool, ...]) -> tuple[BoxedFn | None, tuple[int | None, ...]]:
        part = self.whole.without(pattern)
        if all(position is None for position in part.positions):
            return None, part.positions
        return compile_part(self._root, part.graph, self._compiler, "backward"), part.positions

    def _compile(self, pattern: tuple[bool, ...]) -> tuple[BoxedFn | None, tuple[int | None, ...]]:
        try:
            with without_new_guards(self.graph):
                compiled = self._compiled(pattern)
            self._detach_graph()
            return compiled
        except Exception as error:
            if self._on_error is None:
                raise
            self._on_error("a graph (backward)", error)
        part = self.whole.without(pattern)
        module = new_lazy_module(self._root, part.graph)
        return (lambda args: module.forward(*args)), part.positions


@contextmanager
def without_new_guards(graph: fx.Graph) -> Iterator[None]:
    """Inside, a new guard on symbols is an error: the guards of the compiled frame are already taken."""
    values = (node.meta.get("val") for node in graph.nodes)
    numbers = (number for value in values for number in _symbols_of(value))
    number = next(numbers, None)
    with refusing_new_guards(None if number is None else number.node.shape_env):
        yield


@contextmanager
def refusing_new_guards(env: Any) -> Iterator[None]:
    """Inside, a new guard of a ShapeEnv, if there is one, is an error."""
    if env is None:
        yield
        return
    refusing = getattr(env, "error_on_new_guards", None)
    with _counting_guards(env) if refusing is None else refusing():
        yield


@contextmanager
def _counting_guards(env: Any) -> Iterator[None]:
    """Do as torch 2.13's `error_on_new_guards`, by torch 2.11's count of guards a frozen ShapeEnv refused."""
    frozen, before = env.frozen, env.counter["ignored_backward_guard"]
    env.frozen = True
    try:
        yield
    finally:
        env.frozen = frozen
    if env.counter["ignored_backward_guard"] != before:
        raise RuntimeError("a new guard on sizes is needed, but the guards are already taken")


def _symbols_of(value: Any) -> Iterator[Any]:
    if is_symbolic(value):
        yield value
    elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
        yield from numbers_of(value).values()


class _Differentiable(fx.Interpreter):
    """Runs a graph under autograd; replaces operators without derivatives of their own."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is aten.copy.default:
            return args[0].clone().copy_(args[1])
        view = view_written(target)
        if view is not None:  # not every `*_scatter` operator has a derivative for every dtype
            changed = args[0].clone()
            view(changed, *args[2:], **kwargs).copy_(args[1])
            return changed
        return super().call_function(target, args, kwargs)


def is_batched(tangents: Sequence[torch.Tensor | None]) -> bool:
    """Whether tangents are batched wrappers: under torch.func, or with `is_grads_batched`."""
    wrapped = unstable.is_legacy_batchedtensor
    if unstable.peek_interpreter_stack() is not None:
        return True
    return any(tangent is not None and wrapped(tangent) for tangent in tangents)


def _layout(tangent: torch.Tensor) -> Layout:
    stride = tangent.stride()
    return dims_by_stride(stride) if any(map(is_symbolic, stride)) else tuple(stride)


def _is_expected(tangent: torch.Tensor, layout: Layout) -> bool:
    """Whether a tangent has known strides, those of the layout, and its elements in memory: the usual case."""
    if tangent.layout is not torch.strided or tangent.stride() != layout:
        return False
    return not (tangent.is_conj() or tangent.is_neg() or tangent._is_zerotensor())


def _with_layout(tangent: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return the tangent with this layout; a wrapped one by operators that have batching rules."""
    if isinstance(layout, list):
        return in_order(tangent, layout)
    stride = layout
    if not is_batched([tangent]):
        return restride(tangent, stride)
    return tangent if has_stride(tangent, stride) else in_order(tangent, dims_by_stride(stride))


def _materialised(tangent: torch.Tensor) -> torch.Tensor:
    """Return the tangent with elements in memory: no lazy conjugate or negative, no zero tensor."""
    if tangent._is_zerotensor():
        return torch.zeros(tangent.shape, dtype=tangent.dtype, device=tangent.device)
    return tangent.resolve_conj().resolve_neg() if tangent.is_conj() or tangent.is_neg() else tangent
