"""Generator of residual code, which runs in place of the frame.

Residual code calls the compiled graph with the inputs extracted by the guards, creates new objects, replays mutations,
and returns, or continues with the breaking instruction and a continuation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

from framesmith_aten.contract import Runner
from framesmith_bytecode import Codegen, Label, encode
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.residual.recovery import EagerGraph, OnError, Recovery, as_atomic, emit_protected_call
from framesmith_dynamo.residual.shared_memory import Sharing, sharing_of
from framesmith_dynamo.torch_adapter import unstable
from framesmith_frames import without_hook
from framesmith_guards import LocalSource
from framesmith_sideeffects import Replay, load_source

if TYPE_CHECKING:
    from torch import fx

    from framesmith_dynamo.graph.finished import FinishedGraph, GraphInput
    from framesmith_dynamo.interpreter.frame import Frame
    from framesmith_dynamo.values.base import Value
    from framesmith_guards import Source

CompileGraph = Callable[["fx.GraphModule", Sequence["GraphInput"]], "Callable[..., Any] | Runner"]
#: (graph, memory shared among its inputs) -> the callable that runs it
RunnerOf = Callable[["FinishedGraph", "Sharing | None"], Runner]

CANNOT_REBUILD = register_break(
    "cannot-rebuild",
    what="an object made in the trace is needed afterwards and cannot be reconstructed by compiled code",
    why="its type has no rule for reconstruction",
    hint="use the object only inside the compiled function",
)


class Residual:
    """The residual code of one frame, under construction.

    The code after the graph call is generated first: only then is it known which tensors the graph must return.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.state = frame.state
        self.codegen = Codegen.like(frame.code.bytecode)
        found = (instr.position for instr in reversed(frame.code.instrs[: frame.pc + 1]))
        self.codegen.position = next((position for position in found if position and position.lineno), None)
        #: The first local after the arguments: the hook stores the tuple of the sources in `inputs` there.
        self.inputs_local = self.codegen.new_temp("inputs")
        self.codegen.varnames.insert(len(self.codegen.argnames), self.codegen.varnames.pop())
        self.inputs: tuple[Source, ...] = ()
        self.replay: Replay | None = None
        self.handler: Label | None = None

    # After the graph

    def begin(self, live: Sequence[Value]) -> None:
        """Create the new objects that `live` values and surviving mutations need."""
        self.state.journal.prune(live)
        self.replay = Replay(self.state.journal, self.codegen)
        self.replay.make()

    def change(self, *, grad_mode: bool = True) -> None:
        """Replay the mutations and, with `grad_mode`, the change of torch's gradient mode."""
        assert self.replay is not None
        self.replay.apply()
        grad = self.state.builder.state.grad_after() if grad_mode else None
        if grad is not None:
            self.codegen.push_call(unstable.set_grad_enabled, (), (grad,))
            self.codegen.pop()

    def return_(self, value: Value) -> None:
        """Return the frame's value."""
        self.begin([value])
        assert self.replay is not None
        if self.replay.pending():
            self.codegen.keep(value)
            self.change()
            self.codegen(value)
        else:
            self.codegen(value)
            self.change()
        self.codegen.return_value()

    # The graph

    def finish(self, runner_of: RunnerOf, *, complete: bool, on_error: OnError, fullgraph: bool = False) -> CodeType:
        """Compile the graph, if there is any, and prepend its call. `on_error`, `fullgraph`: see `recovery`."""
        graph = self.state.builder.finish(self.codegen.outputs)
        self.state.finished()  # the compiler and the guards on torch's state must see the state at the call
        if graph is not None:
            compiled, harmless = as_atomic(graph, runner_of(graph, sharing_of(self.state.builder.inputs)))
            recovery = Recovery(EagerGraph(graph.module), harmless=harmless, on_error=on_error, fullgraph=fullgraph)
            self._prepend_call(graph, compiled if complete else without_hook(compiled), recovery)
        return encode(self.codegen.bytecode())

    def _prepend_call(self, graph: FinishedGraph, compiled: Callable[..., Any], recovery: Recovery) -> None:
        codegen = self.codegen
        body = self.frame.code.bytecode
        with codegen.in_front():
            emit_handler = emit_protected_call(
                codegen, graph, body, lambda: self._call_with_inputs(graph, compiled), recovery
            )
            codegen.store_outputs()
        emit_handler()

    def _call_with_inputs(self, graph: FinishedGraph, compiled: Callable[..., Any]) -> None:
        """Call the graph with the tuple extracted by the guards, to which no other reference exists.

        Where all inputs are arguments they are loaded instead.
        """
        codegen = self.codegen
        codegen.push_function(compiled)
        if all(isinstance(item.source, LocalSource) for item in graph.inputs):
            for item in graph.inputs:
                load_source(codegen, item.source)
            codegen.call(len(graph.inputs))
            return
        self.inputs = tuple(item.source for item in graph.inputs)
        codegen.load(self.inputs_local)
        codegen.delete(self.inputs_local)
        codegen.call_ex(False)


def cannot_rebuild(error: Exception) -> GraphBreak:
    """Return the graph break for a value that cannot be reconstructed."""
    return GraphBreak(CANNOT_REBUILD, str(error))
