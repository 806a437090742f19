"""Joins the compiled parts into the function the user's frame calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith_aot.partition.split import Saved
from framesmith_aot.runtime.backward import BackwardPass
from framesmith_aot.runtime.replay import FunctionText, input_names, result_names, unpacking, write_epilogue
from framesmith_aot.runtime.retention import retention, saved_for
from framesmith_aot.trace.metadata import GraphMeta
from framesmith_aten.contract import BoxedFn


@dataclass(frozen=True)
class CallShape:
    """How run-time arguments map to the graph's inputs.

    The call takes `arguments` tensors; graph input i is argument `source[i]`, or, for the last
    `len(constants)` inputs, a tensor the graph holds itself.
    """

    arguments: int
    source: tuple[int, ...]
    constants: tuple[torch.Tensor, ...]

    def names(self) -> list[str]:
        """The names of the graph's inputs in the generated text."""
        return [f"in{at}" for at in self.source] + [f"own{index}" for index in range(len(self.constants))]


class CompiledGraph:
    """A compiled graph: call it with the run-time tensors, it returns the tuple of outputs.

    `function` is the generated function itself (one call less), `text` its source, `forward_graph`
    and `backward_graph` (None without training) what the compiler was or will be given,
    `overwritten` the positions of arguments the call mutates: they must not share memory with
    other arguments.
    """

    def __init__(
        self,
        function: Callable[..., tuple[Any, ...]],
        text: str,
        forward_graph: fx.Graph,
        backward_pass: BackwardPass | None,
        overwritten: tuple[int, ...],
    ) -> None:
        self.function = function
        self.text = text
        self.forward_graph = forward_graph
        self.backward_pass = backward_pass
        self.overwritten = overwritten

    @property
    def backward_graph(self) -> fx.Graph | None:
        return None if self.backward_pass is None else self.backward_pass.graph

    def __call__(self, *args: torch.Tensor) -> tuple[Any, ...]:
        return self.function(*args)


@dataclass(frozen=True)
class Calling:
    """Switches to turn around the graph: grad mode to `grad` (None: leave it), autocast off.

    `record`: the graph turns grad mode on, so the epilogue's views and copies are recorded though the call's mode is
    off.
    """

    grad: bool | None
    no_autocast: bool
    record: bool


def inference_function(run: BoxedFn, meta: GraphMeta, shape: CallShape, calling: Calling) -> FunctionText:
    """The text for a graph without gradients: call, then the epilogue."""
    text = _begin(shape)
    text.bind("graph", run)
    call = f"{unpacking(result_names(len(meta.slots)))} = graph([{', '.join(shape.names())}])"
    _write_call(text, call, calling)
    write_epilogue(text, meta, shape.names(), record=calling.record)
    return text


def training_function(
    run: BoxedFn,
    meta: GraphMeta,
    shape: CallShape,
    calling: Calling,
    saved: Sequence[Saved],
    backward: BackwardPass,
) -> tuple[FunctionText, FunctionText]:
    """The texts for a graph with gradients: one call of the autograd node, and the node's forward."""
    names = shape.names()
    node_text = _node_forward(run, meta, len(names), saved)
    node: Any = type(
        "CompiledGraphNode",
        (torch.autograd.Function,),
        {
            "forward": staticmethod(node_text.build()),
            "backward": staticmethod(_node_backward(backward, meta)),
            # Tells a compiler of whole backward passes that it may trace this one (see README).
            "evaluate_backward": staticmethod(_node_evaluation(backward, meta)),
        },
    )
    text = _begin(shape)
    # The C++ half of `Function.apply`: the Python half serves functorch, which guards keep away from here.
    text.bind("graph", super(torch.autograd.Function, node).apply)
    _write_call(text, f"{unpacking(result_names(len(meta.slots)))} = graph({', '.join(names)})", calling)
    write_epilogue(text, meta, shape.names(), record=calling.record)
    return text, node_text


def _begin(shape: CallShape) -> FunctionText:
    text = FunctionText("compiled_graph", input_names(shape.arguments))
    for index, constant in enumerate(shape.constants):
        text.bind(f"own{index}", constant)
    return text


def _write_call(text: FunctionText, call: str, calling: Calling) -> None:
    guards = []
    if calling.grad is not None:
        name = "enable_grad" if calling.grad else "no_grad"
        text.bind(name, getattr(torch, name))
        guards.append(f"{name}()")
    if calling.no_autocast:
        text.bind("no_autocast", torch._C._DisableAutocast)
        guards.append("no_autocast()")
    if guards:
        text.line(f"with {', '.join(guards)}:")
    text.line(call, 2 if guards else 1)


def _node_forward(run: BoxedFn, meta: GraphMeta, inputs: int, saved: Sequence[Saved]) -> FunctionText:
    names = input_names(inputs)
    extra = [item.index for item in saved if not item.from_input]
    results = result_names(max([len(meta.slots), *(index + 1 for index in extra)]))
    text = FunctionText("forward", ["ctx", *names])
    text.bind("graph", run)
    text.line(f"{unpacking(results)} = graph([{', '.join(names)}])")
    kept = [f"in{item.index}" if item.from_input else f"r{item.index}" for item in saved]
    text.line("ctx.set_materialize_grads(False)")
    if kept:
        text.line(f"ctx.save_for_backward({', '.join(kept)})")
    constant = [f"r{index}" for index, flows in enumerate(meta.slots) if not flows]
    if constant:
        text.line(f"ctx.mark_non_differentiable({', '.join(constant)})")
    text.line(f"return ({''.join(name + ', ' for name in results[: len(meta.slots)])})")
    return text


def _node_backward(backward: BackwardPass, meta: GraphMeta) -> Callable[..., Any]:
    flowing = [index for index, flows in enumerate(meta.slots) if flows]
    rules = retention(backward.whole)

    def node_backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        saved = list(ctx.saved_tensors)
        # Unless the graph is retained: the list is then the only holder, and the backward program frees
        # each tensor after its last use.
        ctx.maybe_clear_saved_tensors()
        return backward(saved, [grads[index] for index in flowing])

    def shared_backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        tangents = [grads[index] for index in flowing]
        return backward(list(saved_for(ctx, tangents, rules)), tangents)

    every = frozenset(range(len(flowing)))
    return node_backward if all(covered == every for covered in rules.covers) else shared_backward


def _node_evaluation(backward: BackwardPass, meta: GraphMeta) -> Callable[..., Any]:
    flowing = [index for index, flows in enumerate(meta.slots) if flows]

    def evaluate_backward(saved: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None]) -> Any:
        return backward.evaluate(saved, [grads[index] for index in flowing])

    return evaluate_backward
