"""The inputs and outputs of a compiled graph as a table for people."""

from __future__ import annotations

from collections.abc import Iterator

from framesmith_aot.trace.metadata import (
    Constant,
    GraphMeta,
    InputMeta,
    InputView,
    OutputMeta,
    Repeat,
    SameInput,
    Slot,
    SlotView,
)
from framesmith_aot.trace.views import Steps, ViewStep
from framesmith_aten.operators import op_name


def table(meta: GraphMeta) -> str:
    """Return a line for each input (its gradient, the writes to it) and for each output (what it is made of)."""
    rows = [*((f"input {at}", _input(one)) for at, one in enumerate(meta.inputs))]
    rows += [(f"output {at}", _output(meta, one)) for at, one in enumerate(meta.outputs)]
    if meta.grad_mode_after is not None:
        rows.append(("grad mode", f"{'on' if meta.grad_mode_after else 'off'} after the call"))
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def _input(one: InputMeta) -> str:
    words = ["gradient" if one.requires_grad else "no gradient"]
    if one.has_node:
        words.append("made by an autograd node")
    if one.written:
        words.append("overwritten by the graph")
    if one.copy is not None:
        words.append(f"overwritten with slot {one.copy.slot}" + (" in no_grad" if one.copy.no_grad else ""))
    return ", ".join(words)


def _output(meta: GraphMeta, one: OutputMeta) -> str:
    role = one.role
    if isinstance(role, Slot):
        return f"slot {role.index}" + (", differentiable" if meta.slots[role.index].differentiable else "")
    if isinstance(role, SlotView):
        return f"view of slot {role.index}: {_steps(role.steps)}"
    if isinstance(role, InputView):
        return f"view of input {role.index}: {_steps(role.steps)}"
    if isinstance(role, SameInput):
        return f"input {role.index} itself"
    if isinstance(role, Repeat):
        return f"the same tensor as output {role.index}"
    return f"the constant {role.value!r}" if isinstance(role, Constant) else "a number of the graph"


def _steps(steps: Steps) -> str:
    return ", ".join(_names(steps)) or "all of it"


def _names(steps: Steps) -> Iterator[str]:
    for step in steps:
        if isinstance(step, ViewStep):
            operands = [*map(repr, step.args), *(f"{name}={value!r}" for name, value in step.kwargs)]
            item = "" if step.item is None else f"[{step.item}]"
            yield f"{op_name(step.target)}({', '.join(operands)}){item}"
        else:
            yield "as_strided"
