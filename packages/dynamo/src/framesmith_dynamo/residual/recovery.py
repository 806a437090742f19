"""Recovery from an error in a compiled graph: the frame restarts eagerly, as though the graph had not been run.

Residual code contains the frame's original instructions after its own: the graph call is in an exception region whose
handler jumps there. Nothing but the graph has run by then, and it leaves no effects: a graph that may fail after it
changed something runs as a `Transaction`. An error that must propagate is raised where these instructions begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from framesmith_aten.assumptions import Asserted, asserted_by, is_assumption, raising_assumptions
from framesmith_aten.contract import AssumptionFailed, Runner
from framesmith_aten.graphs.modules import new_module
from framesmith_aten.layouts import copies
from framesmith_aten.meta import MODE_CHANGE
from framesmith_aten.recording import effects_of
from framesmith_bytecode import Label
from framesmith_dynamo.residual.raising import emit_plain
from framesmith_dynamo.torch_adapter import unstable
from framesmith_frames import deactivated, without_hook
from framesmith_guards.contexts import ambient
from framesmith_sideeffects import load_source

if TYPE_CHECKING:
    from framesmith_bytecode import Bytecode, Codegen
    from framesmith_dynamo.graph.finished import FinishedGraph

#: Called with an error that compiled code raises and eager operations do not: the compiler's own, or a failed
#: assumption about data.
OnError = Callable[[Exception], object]

#: Errors after which an eager run reveals nothing.
NOT_REPLAYED = (MemoryError, RecursionError, torch.OutOfMemoryError, Warning)


class RolledBack(Exception):
    """A graph call failed, and its changes are rolled back. Its cause is the error."""


class Transaction:
    """A compiled graph that changes inputs, random states or torch's modes, and rolls all back if it fails."""

    __slots__ = ("compiled", "mutated_positions", "random", "state")

    def __init__(
        self, compiled: Callable[..., Any], mutated_positions: Sequence[int], *, random: bool, state: bool
    ) -> None:
        self.compiled = compiled
        self.mutated_positions = mutated_positions
        self.random = random
        self.state = state

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """Return the graph's outputs. Raises RolledBack."""
        written = [inputs[position] for position in self.mutated_positions]
        former = [tensor.detach().clone() for tensor in written]
        random = random_state() if self.random else None
        switches = ambient.read() if self.state else None
        try:
            return self.compiled(*inputs)
        except Exception as error:
            if switches is not None:
                ambient.write(switches)
            if random is not None:
                restore_random(random)
            for tensor, contents in zip(written, former, strict=True):
                if not unstable.debug_has_internal_overlap(tensor):  # inference tensors refuse writes
                    tensor.data.copy_(contents)
            raise RolledBack from error


class Recovery:
    """The handler of exceptions of a graph call: the frame restarts, or the exception propagates.

    `harmless`: the graph leaves no effects when it fails, even without a `Transaction`. `fullgraph`: eager code raises
    the program's own errors only; other errors of the graph propagate.
    """

    __slots__ = ("fullgraph", "harmless", "on_error", "plain")

    def __init__(self, plain: EagerGraph, *, harmless: bool, on_error: OnError, fullgraph: bool = False) -> None:
        self.plain = plain
        self.harmless = harmless
        self.on_error = on_error
        self.fullgraph = fullgraph

    def __call__(self, error: BaseException, *inputs: torch.Tensor) -> BaseException | None:
        """Return None to restart the frame, or the exception to raise in the frame's open blocks.

        `on_error` is called with errors that are not the program's, and may raise.
        """
        if isinstance(error, RolledBack):
            cause = error.__cause__
            assert isinstance(cause, Exception)
        elif isinstance(error, Exception) and self.harmless:
            cause = error
        else:
            return error
        if self.fullgraph and isinstance(cause, NOT_REPLAYED):
            return cause
        try:
            if isinstance(cause, AssumptionFailed) and not self.plain.assumes:
                self.on_error(cause)  # the compiler's, for which the program need not run
            elif not isinstance(cause, NOT_REPLAYED):
                self._report(cause, error_of(self.plain, inputs))
        except BaseException as reported:
            return reported
        return None

    def _report(self, cause: Exception, raised: Exception | None) -> None:
        """Report an error that is not the program's. A local `raised` in the caller would keep the inputs alive."""
        if raised is None or isinstance(raised, AssumptionFailed):
            self.on_error(raised or cause)


def error_of(plain: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Exception | None:
    """Return the error, if any, of the graph run operation by operation on copies of its inputs."""
    random = random_state()
    try:
        with ambient.preserved(), torch.no_grad(), deactivated():
            plain(*copies(inputs))
    except Exception as error:
        return error.with_traceback(None)
    finally:
        restore_random(random)
    return None


class EagerGraph:
    """A graph run operation by operation, as the program does, without its runtime assertions.

    Where a choice of the tracer, not of the program, does not hold, AssumptionFailed is raised, since the program takes
    another path. `assumes`: whether the graph has assertions or choices.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self.assumes = any(map(is_assumption, module.graph.nodes))
        self._module = module
        self._forward: Callable[..., Any] | None = None

    def __call__(self, *inputs: torch.Tensor) -> Any:
        if self._forward is None:
            self._forward = _without_rules(self._module)
        return self._forward(*inputs)


def _without_rules(module: fx.GraphModule) -> Callable[..., Any]:
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in [node for node in graph.nodes if asserted_by(node) is Asserted.OPERATOR]:
        graph.erase_node(node)
    return raising_assumptions(new_module(module, graph).forward, graph.nodes)


def random_state() -> list[torch.Tensor]:
    """Return the state of the default generators: the CPU's, then those of CUDA devices in use."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return [torch.get_rng_state(), *cuda]


def restore_random(state: Sequence[torch.Tensor]) -> None:
    """Restore the result of `random_state`."""
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state_all(state[1:])


def calls_in(graph: FinishedGraph) -> list[fx.Node]:
    return [node for node in graph.module.graph.nodes if node.op in ("call_function", "call_method")]


def transaction(graph: FinishedGraph, runner: Runner) -> Callable[..., Any]:
    """Return `run`, which runs the graph, made to roll back its changes if it fails."""
    nodes = calls_in(graph)
    random = any(effects_of(node).random for node in nodes)
    state = any(MODE_CHANGE.on(node) for node in nodes)
    mutated = () if runner.rerunnable_after_error else graph.mutated_positions
    if mutated or random or state:
        return Transaction(runner.run, mutated, random=random, state=state)
    return runner.run


def as_atomic(graph: FinishedGraph, runner: Runner) -> tuple[Callable[..., Any], bool]:
    """Return the compiled graph, made to leave no effects if it fails; and whether it never leaves any by itself."""
    if not runner.assumes:
        run = raising_assumptions(runner.run, graph.module.graph.nodes)
        runner = replace(runner, run=run)
    atomic = transaction(graph, runner)
    if atomic is runner.run:
        return atomic, True
    if runner.assumes or any(effects_of(node).may_fail for node in calls_in(graph)):
        return atomic, True
    return runner.run, False


def emit_protected_call(
    codegen: Codegen, graph: FinishedGraph, body: Bytecode, call: Callable[[], object], recovery: Recovery
) -> Callable[[], None]:
    """Emit `call` in an exception region; return the emitter of the region's handler, for the end of the code."""
    caught = Label("graph failed")
    with codegen.protected(caught, depth=0):
        call()

    def emit_handler() -> None:
        codegen.mark(caught)
        codegen.push_function(without_hook(recovery.__call__))
        codegen.copy(3)  # the error, under the callable's two slots; a local would keep it and the frame alive
        for item in graph.inputs:
            load_source(codegen, item.source)
        codegen.call(1 + len(graph.inputs))
        verdict = codegen.new_temp("verdict")
        codegen.store(verdict)
        codegen.pop()
        emit_plain(codegen, body, verdict)

    return emit_handler
