"""A plan as one flat Python function: unpack, allocate, launch, call, return. Its text is readable by itself."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from framesmith_aten.contract import BoxedFn
from framesmith_aten.layouts import restride
from framesmith_aten.operators import is_custom, is_view, op_name
from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.program import Layout
from framesmith_backends.schedule.plan import Plan
from framesmith_backends.schedule.steps import Allocate, CallStep, Drop, Run, Step


@dataclass(slots=True)
class Writer:
    """The function being written.

    `space` is its globals, `names` maps runtime names to identifiers, `runtime` graph nodes' names to runtime names.
    """

    space: dict[str, object] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    runtime: dict[str, str] = field(default_factory=dict)

    def identifier(self, name: str) -> str:
        found = self.names.get(name)
        if found is None:
            text = re.sub(r"\W", "_", name)
            while text in self.names.values() or text in self.space:
                text += "_"
            found = self.names[name] = text
        return found

    def bind(self, hint: str, value: object) -> str:
        """A global name for the value; the same object gets the same name."""
        for name, known in self.space.items():
            if known is value:
                return name
        name = "_" + re.sub(r"\W", "_", hint)
        while name in self.space:
            name += "_"
        self.space[name] = value
        return name


def write(plan: Plan, gm: fx.GraphModule) -> tuple[str, dict[str, object]]:
    """(source of `call(args)`, its globals except for the native entries)."""
    w = Writer(
        space={"_empty": torch.empty_strided, "_restride": restride, "_below_autograd": below_autograd},
        runtime=plan.runtime,
    )
    for name in plan.inputs:
        w.identifier(name)
    body: list[str] = []
    for step in plan.steps:
        body += _WRITERS[type(step)](w, step, gm)
    outputs = ", ".join(w.identifier(o) if isinstance(o, str) else literal(w, o) for o in plan.outputs)
    body.append(f"return ({outputs}{',' if len(plan.outputs) == 1 else ''})")
    head = ["def call(args):"]
    if plan.inputs:
        unpacked = ", ".join(w.identifier(n) for n in plan.inputs)
        head.append(f"    {unpacked}{',' if len(plan.inputs) == 1 else ''} = args")
    head.append("    args.clear()")
    if needs_guard(plan):
        head.append("    with _below_autograd():")
        return "\n".join(head + [f"        {line}" for line in body]) + "\n", w.space
    return "\n".join(head + [f"    {line}" for line in body]) + "\n", w.space


def executed(source: str, space: dict[str, object]) -> BoxedFn:
    """The function `call` of the source, with `space` as its globals."""
    exec(compile(source, "<framesmith launcher>", "exec"), space)
    call: BoxedFn = space["call"]  # type: ignore[assignment]
    return call


def below_autograd() -> Any:
    """A guard under which ATen calls skip autograd: the graph has no gradients of its own to record.

    Nor views: operators that compute a new tensor may well take a view of it inside, and autograd would then refuse to
    let the user change the result.
    """
    return torch._C._AutoDispatchBelowADInplaceOrView()


def needs_guard(plan: Plan) -> bool:
    """Whether there are ATen calls, all of plain operators, to run below autograd."""
    nodes = [step.call.node for step in plan.steps if isinstance(step, CallStep)]
    targets = [node.target for node in nodes if node.op == "call_function" and node.target is not operator.getitem]
    return bool(targets) and all(isinstance(target, OpOverload) and not is_custom(target) for target in targets)


def _allocate(w: Writer, step: Step, gm: fx.GraphModule) -> list[str]:
    assert isinstance(step, Allocate)
    name = w.identifier(step.name)
    if step.reuse is not None:
        return [f"{name} = {w.identifier(step.reuse)}"]
    layout = step.layout
    dtype = w.bind(layout.dtype, DTYPES[layout.dtype].torch)
    device = "" if layout.device == "cpu" else f", device={layout.device!r}"
    return [f"{name} = _empty({layout.shape}, {layout.strides}, dtype={dtype}{device})"]


def _run(w: Writer, step: Step, gm: fx.GraphModule) -> list[str]:
    assert isinstance(step, Run)
    return [f"{step.entry}({', '.join(w.identifier(b) for b in step.buffers)})"]


def _call(w: Writer, step: Step, gm: fx.GraphModule) -> list[str]:
    assert isinstance(step, CallStep)
    node, name = step.call.node, w.identifier(step.call.name)
    lines = [f"{name} = {call_text(w, node, gm)}"]
    if step.layout is not None and node.op == "call_function":
        lines += _checked(name, step.layout)
    return lines


def _checked(name: str, layout: Layout) -> list[str]:
    return [f"if {name}.stride() != {layout.strides}:", f"    {name} = _restride({name}, {layout.strides})"]


def method_text(w: Writer, node: fx.Node) -> str | None:
    """The node as a method of its first argument, if it is a view that has one: that takes less time than the operator.

    Methods of C alone: those written in Python take more.
    """
    name = op_name(node.target)
    method = getattr(torch._C.TensorBase, name, None)
    if not is_view(node.target) or not callable(method) or getattr(torch.Tensor, name) is not method or node.kwargs:
        return None
    source, *rest = node.args
    return f"{literal(w, source)}.{name}({', '.join(literal(w, a) for a in rest)})"


def call_text(w: Writer, node: fx.Node, gm: fx.GraphModule) -> str:
    """The expression that computes the node."""
    if node.op == "get_attr":
        return w.bind(str(node.target), _attribute(gm, str(node.target)))
    if node.target is operator.getitem:
        return f"{literal(w, node.args[0])}[{literal(w, node.args[1])}]"
    method = method_text(w, node)
    if method is not None:
        return method
    target = node.target
    if isinstance(target, OpOverload):
        function = w.bind(f"op_{node.target}", target._op)
    else:
        function = w.bind(f"fn_{getattr(target, '__name__', 'call')}", target)
    parts = [literal(w, a) for a in node.args]
    parts += [f"{key}={literal(w, value)}" for key, value in node.kwargs.items()]
    return f"{function}({', '.join(parts)})"


def _attribute(gm: fx.GraphModule, path: str) -> object:
    found: Any = gm
    for part in path.split("."):
        found = getattr(found, part)
    return found


def literal(w: Writer, value: object) -> str:
    """The value as source text: nodes by their names, plain data as itself, anything else as a bound global."""
    if isinstance(value, fx.Node):
        return w.identifier(w.runtime.get(value.name, value.name))
    if value is None or isinstance(value, (bool, str)) or type(value) is int:
        return repr(value)
    if type(value) is float and math.isfinite(value):
        return repr(value)
    if isinstance(value, (list, fx.immutable_collections.immutable_list)):
        return f"[{', '.join(literal(w, v) for v in value)}]"
    if type(value) is tuple:
        return f"({', '.join(literal(w, v) for v in value)}{',' if len(value) == 1 else ''})"
    return w.bind(f"const_{type(value).__name__}", value)


def _drop(w: Writer, step: Step, gm: fx.GraphModule) -> list[str]:
    assert isinstance(step, Drop)
    return [f"del {', '.join(w.identifier(n) for n in step.names)}"]


_WRITERS: dict[type, Callable[[Writer, Step, fx.GraphModule], list[str]]] = {
    Allocate: _allocate, Run: _run, CallStep: _call, Drop: _drop,
}  # fmt: skip
