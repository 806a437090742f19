"""Traces one call of a function without side effects: its graph, and the guards under which another call has it, too.

The caller of the function may then run the graph in its place, within a graph of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import fx

from framesmith_aten.graphs.modules import new_module
from framesmith_aten.layouts import storage_id
from framesmith_aten.operators import op_name
from framesmith_aten.recording import effects_of
from framesmith_dynamo.admission.costly_callees import CostlyCallees
from framesmith_dynamo.admission.global_state import global_state_guards, saved_tensor_hooks_covered
from framesmith_dynamo.breaks import GraphBreak, drop_tracebacks
from framesmith_dynamo.convert_frame.automatic_dynamic import History
from framesmith_dynamo.convert_frame.converter import MAX_RESTARTS, release
from framesmith_dynamo.interpreter.loop import EscapedException, outermost_frame, run_outermost
from framesmith_dynamo.residual.aliasing import alias_guards
from framesmith_dynamo.torch_switches import resets
from framesmith_dynamo.trace_state import RestartTrace, SpeculationLog
from framesmith_dynamo.values.containers.sequence import SequenceValue
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_guards import Guard, GuardsSet, located, state_guards
from framesmith_sideeffects import CannotLoad, NotMadeHere

if TYPE_CHECKING:
    from framesmith_aten.meta import Effects
    from framesmith_dynamo.graph.builder import GraphBuilder, TensorRef
    from framesmith_dynamo.interpreter.frame import Frame
    from framesmith_dynamo.values.base import Value
    from framesmith_frames import FrameInfo
    from framesmith_guards import Source


class NotPure(Exception):
    """The call has side effects, cannot be traced as one graph, or gives more than tensors; the message says which."""


@dataclass(frozen=True, slots=True)
class PureCall:
    """A traced call: a torch-level graph of the tensors at `inputs`, which changes none of them.

    `result` is what the function returns, with positions among the graph's outputs in place of tensors: a position,
    None, or a tuple of these. `guards` are all assumptions of the trace, those about its arguments among them.
    """

    module: fx.GraphModule
    inputs: tuple[Source, ...]
    guards: tuple[Guard, ...]
    result: Any


@dataclass(frozen=True)
class _Call:
    """A call as the frame hook would describe it."""

    function: FunctionType
    arguments: tuple[Any, ...]
    cache: int = 0

    @property
    def code(self) -> CodeType:
        return self.function.__code__

    @property
    def globals(self) -> dict[str, Any]:
        return self.function.__globals__

    @property
    def closure(self) -> tuple[CellType, ...] | None:
        return self.function.__closure__


def trace_pure_call(function: FunctionType, arguments: Sequence[Any], *, dynamic: bool = False) -> PureCall:
    """Return the trace of a call with these positional arguments, one for each parameter. Raises NotPure.

    `dynamic`: sizes of tensors are symbols, and guards of the kind SHAPE say what was assumed about them. No code of
    the function runs.
    """
    resets.register()
    info = cast("FrameInfo", _Call(function, tuple(arguments)))
    log = SpeculationLog()
    history = History(dynamic)
    for _ in range(MAX_RESTARTS):
        try:
            with saved_tensor_hooks_covered():
                return _attempt(info, log, history)
        except RestartTrace:
            if log.reason is not None:
                raise _refusal(log.reason, log) from None
    raise NotPure(f"tracing does not settle after {MAX_RESTARTS} attempts")


def _attempt(info: FrameInfo, log: SpeculationLog, history: History) -> PureCall:
    frame = outermost_frame(info, log, CostlyCallees(), history)
    try:
        with located(frame.state.location):
            ending = run_outermost(frame, log)
            if ending.value is None:
                assert ending.reason is not None
                raise _refusal(ending.reason, log)
            return _finished(frame, ending.value)
    except (EscapedException, GraphBreak) as broken:
        raise _refusal(broken, log) from None
    except NotMadeHere as error:
        log.called_for_real.add(id(cast("Any", error.maker).obj))
        raise RestartTrace from error
    except (NotImplementedError, CannotLoad) as error:
        raise NotPure(str(error)) from error
    finally:
        frame.state.finished()
        release(frame)


def _refusal(reason: Exception, log: SpeculationLog) -> NotPure:
    text = str(reason)
    drop_tracebacks(reason, log.outside)
    return NotPure(text)


def _finished(frame: Frame, value: Value) -> PureCall:
    state = frame.state
    state.journal.prune([value])
    if not state.journal.is_empty() or state.builder.state.grad_after() is not None:
        raise NotPure("it changes what exists outside of it")
    outputs: list[TensorRef] = []
    result = _placed(value, outputs)
    if any(_is_written(state.builder, one) for one in state.builder.refs.values() if one.source is not None):
        raise NotPure("it changes a tensor that it did not make")
    graph = state.builder.finish(outputs)
    for node in () if graph is None else graph.module.graph.nodes:
        _check_effects(effects_of(node), node)
    state.finished()  # guards on torch's state must see the state at the call
    for source, kind in state.facts.unread_strings.items():
        frame.guard(source, "TYPE_MATCH", kind)
    guards = GuardsSet(state.guards)
    guards.update(state_guards(), global_state_guards(), alias_guards(state), state.symbols.guards())
    if graph is None:
        return PureCall(_nothing_computed(), (), tuple(guards), result)
    return PureCall(graph.module, tuple(item.source for item in graph.inputs), tuple(guards), result)


def _placed(value: Value, outputs: list[TensorRef]) -> Any:
    """Return a value with positions in place of its tensors, which are added to `outputs`."""
    if isinstance(value, TensorValue):
        outputs.append(value.ref)
        return len(outputs) - 1
    if isinstance(value, SequenceValue) and value.python_type() in (tuple, list):
        return tuple(_placed(value.at(index), outputs) for index in range(len(value.items)))
    if value.is_constant() and value.as_constant() is None:
        return None
    raise NotPure(f"it returns {value.describe()}")


def _is_written(builder: GraphBuilder, ref: TensorRef) -> bool:
    if ref.is_mutated():
        return True
    return ref.fake.layout is torch.strided and storage_id(ref.fake) in builder.writes


def _check_effects(effects: Effects, node: fx.Node) -> None:
    """Raise NotPure for an operator that may raise on some data, draws random numbers, or does what it does not say."""
    for name, what in _IMPURE.items():
        if getattr(effects, name):
            raise NotPure(f"it calls {op_name(node.target)}, which {what}")


#: Fields of `Effects`, and what an operator with them does.
_IMPURE: Final = {
    "random": "draws random numbers",
    "may_fail": "may raise on some data",
    "unproven": "may refuse its operands",
    "irreversible": "may do anything",
    "external": "has effects outside of tensors",
    "custom": "is not torch's own",
}


def _nothing_computed() -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(())
    return new_module({}, graph)
