"""Records the effects of the ATen operators under a torch call, by a dispatch mode rather than by names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import fx

from framesmith_aten.checks import kernel_probes, limits
from framesmith_aten.checks.overlaps import Overlaps, check_operands, parts_shown
from framesmith_aten.checks.plain_tensors import other_layout, refuse_others, refuse_sparse_gradients
from framesmith_aten.checks.rng_order import check_order
from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.failures import may_fail
from framesmith_aten.fakes.light_torch import LightDispatchMode
from framesmith_aten.graphs.numbers import FUNCTIONS, LAYOUT_QUERIES
from framesmith_aten.layouts import sizes_below, storage_id
from framesmith_aten.meta import EFFECTS, EXAMPLE, Effects
from framesmith_aten.nested import tensors_in
from framesmith_aten.operators import (
    acts_on_no_operands,
    arguments,
    asks_device,
    asks_sizes,
    changes_metadata,
    gives_unknown_value,
    has_external_effect,
    is_composite,
    is_contraction,
    is_custom,
    is_random,
    is_view_by_strides,
    may_drop_ones,
    row,
    run_parts,
    written,
)
from framesmith_aten.symbolic import may_all_hold
from framesmith_aten.torch_adapter import unstable
from framesmith_aten.tracing import functional_forms
from framesmith_guards.torch_adapter import DataDependentOutputException, DynamicOutputShapeException

#: The id of a refused view.
VIEW_OR_COPY = "view-or-copy"


#: The id of a refused call whose result does not arrive where `out=` asks for it.
LOST_RESULT = "lost-result"


def note_effects(overlaps: Overlaps, what: str, effects: Effects, out: Iterable[torch.Tensor] = ()) -> None:
    """Add the views under a call to `overlaps`. Raises TraceUnsupported for a call whose writes a graph would not have.

    `what`: its name. `out`: the tensors of its argument of this name; some of torch's functions (`linalg.matrix_rank`)
    return another tensor instead while a mode is active, and write to none of them.
    """
    written = {storage_id(one) for one in effects.written if one.layout is torch.strided}
    for tensor in out if not effects.reshaped else ():
        lost = tensor.layout is torch.strided and storage_id(tensor) not in written
        if lost and (tensor._has_symbolic_sizes_strides or tensor.numel()):
            raise TraceUnsupported(LOST_RESULT, f"{what}(out=...)", "no operator under the call writes to `out`")
    for shown in effects.undone_by_sums:
        overlaps.note_undone_by_sums(shown)
    overlaps.parts += effects.parts
    for shown in effects.restrided:
        overlaps.note_restrided(shown, what)
    for changed in [] if effects.reshaped else effects.written:
        overlaps.check(changed, what)


class KernelRefuses(Exception):
    """An operator's real kernel refuses operands that fakes accepted. The message is its name and its error."""


class RecordingFailed(RuntimeError):
    """Finding an operator's effects failed: a defect of this package's, not an error of the operator."""


_NONE: Final = Effects()
_UNKNOWN: Final = Effects(may_fail=True, irreversible=True)


def effects_of(node: fx.Node) -> Effects:
    """Return the effects of a node of a torch-level graph; not to be changed.

    For a call, as recorded (`meta.EFFECTS`). A call without a record may do anything: its graph may come from another
    producer, and a call that is wrongly assumed pure is dropped or repeated. Other nodes need no record, nor do
    functions of scalars: guards exclude values for which they raise.
    """
    found = EFFECTS.get(node)
    if found is None:
        return _UNKNOWN if is_call(node) and not computes_number(node) else _NONE
    return found


def is_call(node: fx.Node) -> bool:
    return node.op in ("call_function", "call_method", "call_module")


def computes_number(node: fx.Node) -> bool:
    """Whether a node of a torch-level graph reads a scalar of a tensor's layout, or computes one of others."""
    if node.target in LAYOUT_QUERIES:
        return True
    known = node.target in FUNCTIONS and EXAMPLE.on(node)
    return known and not any(True for _ in tensors_in(EXAMPLE.of(node)))


#: Errors of the log about an operator, and the error of the program's own call depth.
MEANT = (
    KernelRefuses,
    TraceUnsupported,
    DataDependentOutputException,
    DynamicOutputShapeException,
    RecursionError,
    RecordingFailed,
)


class OperatorLog(LightDispatchMode):
    """A dispatch mode, active over a fake tensor mode, that records the effects of each operator before it runs.

    Raises KernelRefuses at an operator that eager mode refuses, too; torch's DataDependentOutputException at one that
    returns a value beside tensors; its DynamicOutputShapeException at one whose result has an unknown rank;
    TraceUnsupported at one whose writes cannot be traced; RecordingFailed where recording failed. Earlier operators
    have run.
    """

    def __init__(self, presumed: list[tuple[torch.SymBool, bool]] | None = None) -> None:
        """`presumed`: the fakes' ShapeEnv's list of conditions that it answered without knowing, with its answers."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.effects = Effects()
        self._presumed = [] if presumed is None else presumed
        self._before = len(self._presumed)
        #: Tensors that an operator copied although its caller might have used a view, and the copies.
        self._copied: list[tuple[torch.Tensor, torch.Tensor]] = []
        #: The id of the last error of an operator: every other error is this package's own.
        self._of_operator = 0

    def dispatch(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if asks_device(func):
            return args[0].device
        if asks_sizes(func):
            return [*sizes_below(args[0])]
        self._of_operator = 0
        try:
            return self._noted(func, args, kwargs or {})
        except MEANT:
            raise
        except Exception as error:
            if id(error) == self._of_operator:
                raise
            raise RecordingFailed(f"{func}: {type(error).__name__}: {error}") from error

    def _noted(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        refuse_others(func, (*args, *kwargs.values()))
        if is_composite(func):  # in inference mode autograd has not decomposed it
            with self:
                return self._called(partial(run_parts, func), (args, kwargs), {})
        if may_drop_ones(func, args, kwargs):
            raise DynamicOutputShapeException(func)
        self._note(func, args, kwargs)
        if row(func).broadcasts:
            self._called(torch.broadcast_shapes, tuple(t.shape for t in tensors_in(args)), {})
        asked = len(self._presumed)
        out = None if acts_on_no_operands(func) else self._called(func, args, kwargs)
        refuse_others(func, out)
        if gives_unknown_value(func, out):
            raise DataDependentOutputException(func)
        out = kernel_probes.as_laid_out(func, args, kwargs, out)
        del self._presumed[asked:]  # an operator's own answers do not matter: it shares memory whatever its sizes are
        if asked > self._before and row(func).copies:
            self._copied.append((args[0], out))
        self.effects.parts += parts_shown(func, (args, kwargs), out)
        return out

    def rely_on_copies(self, operands: Any, result: Any) -> None:
        """Record conditions under which a call copies operands that were copied at capture.

        Parts of operators (`reshape`) that return a view for some sizes have asked about these, and for unbacked sizes
        the answer was no. Raises TraceUnsupported where that cannot be checked.
        """
        if not self._copied:
            return
        shared = {storage_id(one) for one in tensors_in(operands) if one.layout is torch.strided}
        shared |= {storage_id(copy) for one, copy in self._copied if storage_id(one) in shared}
        copies = {storage_id(copy) for one, copy in self._copied if storage_id(one) in shared}
        met = [*tensors_in(result), *self.effects.written]
        if any(one.layout is torch.strided and storage_id(one) in copies for one in met):
            asked = self._presumed[self._before :]
            relied = [one if answer else torch.sym_not(one) for one, answer in asked]  # type: ignore[no-untyped-call]
            what = "a tensor's elements in other sizes"
            why = "whether it is a view is known when it runs"
            if not may_all_hold(relied):
                raise TraceUnsupported(VIEW_OR_COPY, what, why)
            for condition in relied:
                try:
                    unstable.check(condition)
                except RuntimeError as error:  # it is known not to hold
                    raise TraceUnsupported(VIEW_OR_COPY, what, why) from error

    def _called(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return func(*args, **kwargs)
        except Exception as error:
            self._of_operator = id(error)  # not the error, whose traceback holds this frame and its callers
            raise

    def _note(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        effects = self.effects
        answer = kernel_probes.verdict(op, args, kwargs)
        if answer.refusal is not None:
            raise KernelRefuses(f"{op}: {answer.refusal}")
        if answer.gives is not None:
            raise other_layout(op, answer.gives)
        refuse_sparse_gradients(op, args, kwargs)
        for condition in limits.rely_on_accepted(op, args, kwargs):
            self._called(unstable.check, (condition,), {})
        if is_custom(op):
            functional_forms.check(op, args, kwargs)
        changed = written(op, args, kwargs)
        for tensor in changed:
            check_order(op, tensor)
        if changed and not is_custom(op):
            check_operands(op, args, kwargs)
        if not torch.is_inference_mode_enabled() and not is_custom(op) and any(map(torch.is_inference, changed)):
            raise KernelRefuses(f"{op}: outside of inference mode an inference tensor is not written to")
        effects.written += changed
        effects.reshaped |= changes_metadata(op)
        if row(op).undone_by_sums:
            effects.undone_by_sums.append(args[0])
        if is_view_by_strides(op):
            effects.restrided.append(args[0])
            effects.has_offset |= arguments(op, args, kwargs)["storage_offset"] is not None
        effects.random |= is_random(op)
        effects.irreversible |= is_custom(op) or not op._schema.returns
        effects.external |= has_external_effect(op)
        effects.custom |= is_custom(op)
        effects.contracts |= is_contraction(op)
        fails = may_fail(op, args, kwargs)
        effects.may_fail |= fails
        effects.unproven |= not answer.certain and not fails
