"""`CompiledGraph`, and the generated function around a graph without gradients."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from framesmith_aot.runtime.backward import BackwardPass
from framesmith_aot.runtime.codegen import (
    FunctionText,
    argument_name,
    number_name,
    own_name,
    slot_name,
    unpacking,
    unwatching,
    write_mutations,
    write_outputs,
)
from framesmith_aot.runtime.grad_modes import EnableGrad, NoGrad
from framesmith_aot.runtime.numbers import ScalarText
from framesmith_aot.runtime.tables import table
from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace.metadata import GraphMeta
from framesmith_aten.assumptions import is_assumption
from framesmith_aten.contract import BoxedFn, Runner


@dataclass(frozen=True)
class CallShape:
    """The mapping from run-time arguments to the graph's inputs.

    The call takes `arguments` tensors; graph input i is argument `source[i]`, or, for the last `len(constants)` inputs,
    a tensor that the graph holds itself.
    """

    arguments: int
    source: tuple[int, ...]
    constants: tuple[torch.Tensor, ...]

    def names(self) -> list[str]:
        return [*map(argument_name, self.source), *map(own_name, range(len(self.constants)))]


def unboxed(function: BoxedFn) -> Callable[..., Any]:
    """Return a function of arguments for one of a list."""
    return lambda *args: function([*args])


#: A name in generated text.
IDENTIFIER: Final = re.compile(r"\w+")


class CompiledGraph:
    """A compiled graph: called with the run-time tensors, it returns the tuple of outputs.

    `function` is the generated function (one call less), `runner` also says what holds of its calls, `text` is its
    source, `forward_graph` the graph given to the compiler, `backward_passes` those of its autograd nodes, nearest to
    the inputs first (none without training), `overwritten` the positions of arguments that the call mutates: they must
    not overlap other arguments, `parts` the records of its inputs and outputs (of two graphs, where it is compiled as
    two). `boxed`: `function` takes one list, which it empties.
    """

    def __init__(
        self,
        function: Callable[..., tuple[Any, ...]],
        text: str,
        forward_graph: fx.Graph,
        backward_passes: tuple[BackwardPass, ...],
        overwritten: tuple[int, ...],
        *,
        parts: Sequence[GraphMeta] = (),
        rerunnable_after_error: bool = True,
        boxed: bool = False,
    ) -> None:
        self.function = unboxed(function) if boxed else function
        # The writes of one graph are its last calls, and no statement after them can fail.
        assumes = any(map(is_assumption, forward_graph.nodes))
        self.runner = Runner(self.function, rerunnable_after_error, assumes, boxed=function if boxed else None)
        self.text = text
        self.forward_graph = forward_graph
        self.backward_passes = backward_passes
        self.overwritten = overwritten
        self.parts = parts

    @property
    def table(self) -> str:
        """A line for each input and each output: gradients, writes, views. Two tables for a graph compiled as two."""
        return "\n\n".join(map(table, self.parts))

    def __call__(self, *args: torch.Tensor) -> tuple[Any, ...]:
        return self.function(*args)


@dataclass(frozen=True)
class CallModes:
    """Modes to set around the graph: grad mode to `grad` (None: unchanged), autocast off if `no_autocast`.

    `record`: the graph turns grad mode on, so the epilogue's views and copies are recorded though the call's mode is
    off. `unwatched`: autograd tracks no views and versions inside the graph, as some result is a view of memory nobody
    else sees, or inputs are overwritten, whose versions the epilogue counts.
    """

    grad: bool | None
    no_autocast: bool
    record: bool
    unwatched: bool


def inference_function(
    run: BoxedFn, meta: GraphMeta, shape: CallShape, modes: CallModes, numbers: ScalarText, *, boxed: bool = False
) -> FunctionText:
    """Return the text for a graph without gradients: the call, then the epilogue.

    `boxed`: it takes one list, which it empties, and holds no input that the epilogue does not need.
    """
    text = begin(shape, boxed=boxed)
    numbers.write(text, shape.names())
    text.bind("graph", run)
    results = [*map(slot_name, range(len(meta.slots))), *map(number_name, numbers.returned)]
    taken = f"[{', '.join(shape.names())}]"
    before = len(text.lines)
    write_calls(text, [f"{unpacking(results)} = graph({'args' if boxed else taken})"], modes)
    after = len(text.lines)
    write_mutations(text, meta, shape.names(), record=modes.record)
    write_outputs(text, meta, shape.names(), record=modes.record)
    if boxed:
        needed = {name for line in text.lines[after:] for name in IDENTIFIER.findall(line)}
        unneeded = [name for name in map(argument_name, range(shape.arguments)) if name not in needed]
        text.lines[before:before] = [f"    args += {taken}", *([f"    del {', '.join(unneeded)}"] if unneeded else [])]
    return text


def begin(shape: CallShape, *, boxed: bool = False) -> FunctionText:
    """Return the head of the function around a graph, with the tensors that the graph holds."""
    arguments = [*map(argument_name, range(shape.arguments))]
    text = FunctionText("compiled_graph", ["args"] if boxed else arguments)
    if boxed:
        text.line(f"{unpacking(arguments)} = args")
        text.line("args.clear()")
    for index, constant in enumerate(shape.constants):
        text.bind(own_name(index), constant)
    return text


def write_calls(text: FunctionText, calls: Sequence[str], modes: CallModes) -> None:
    """Write the statements that run the graph, in its modes."""
    guards = []
    if modes.grad is not None:
        mode = EnableGrad if modes.grad else NoGrad
        guards.append(f"{text.bind(mode.__name__, mode)}()")
    if modes.no_autocast:
        text.bind("no_autocast", unstable.DisableAutocast)
        guards.append("no_autocast()")
    if modes.unwatched:
        guards.append(unwatching(text))
    if guards:
        text.line(f"with {', '.join(guards)}:")
    for call in calls:
        text.line(call, 2 if guards else 1)
