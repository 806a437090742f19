"""A plan as one flat Python function: unpack, allocate, launch, call, return. Its text is readable by itself."""

from __future__ import annotations

import functools
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from framesmith_aten.contract import BoxedFn
from framesmith_aten.graphs.control_flow import BODIES, bodies_of, calls_of, is_body
from framesmith_aten.graphs.numbers import FUNCTIONS
from framesmith_aten.layouts import restride
from framesmith_aten.operators import is_custom, is_view, op_name
from framesmith_aten.symbolic import is_symbolic
from framesmith_backends.eager import run_eagerly
from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Number
from framesmith_backends.ir.program import BufferView, SymbolBinding
from framesmith_backends.ir.symbolic.size import Size, Symbol, size_text, symbols, symbols_of
from framesmith_backends.launch.loops import CompileBody, operands_of, runner
from framesmith_backends.schedule.plan import Plan
from framesmith_backends.schedule.steps import Allocate, CallStep, CopyStep, Drop, Run
from framesmith_backends.torch_adapter import unstable
from framesmith_guards.generated import generated_namespace
from framesmith_guards.torch_adapter import OpOverload, aten

#: In the globals of generated code: whose its frames are.
OWNER = generated_namespace("framesmith_backends")
#: Copies several tensors onto others.
COPY_ALL = aten._foreach_copy_.default


@dataclass(slots=True)
class LauncherText:
    """The function being written.

    `space` is its globals, `names` maps runtime names to identifiers, `runtime` graph nodes' names to runtime names.
    `symbols` names the numbers known at the call, `bindings` has for each value the lines that read them from it.
    With `below_autograd` nothing that it calls may ask for autograd. `compile_body` compiles bodies of control flow.
    """

    space: dict[str, object] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    runtime: dict[str, str] = field(default_factory=dict)
    symbols: dict[Symbol, str] = field(default_factory=dict)
    bindings: dict[str, list[str]] = field(default_factory=dict)
    below_autograd: bool = True
    compile_body: CompileBody = run_eagerly
    bodies: dict[fx.GraphModule, BoxedFn] = field(default_factory=dict)
    identifiers: set[str] = field(default_factory=set)

    def identifier(self, name: str) -> str:
        found = self.names.get(name)
        if found is None:
            found = self.names[name] = self._free(re.sub(r"\W", "_", name))
            self.identifiers.add(found)
        return found

    def _free(self, name: str) -> str:
        """The name, or one like it: a name of the function's own is none of its globals."""
        while name in self.identifiers or name in self.space:
            name += "_"
        return name

    def body(self, body: fx.GraphModule) -> BoxedFn:
        """A body, compiled once for all calls that share it."""
        if body not in self.bodies:  # a key keeps the body: another one may get the id of one that is gone
            self.bodies[body] = self.compile_body(body)
        return self.bodies[body]

    def size(self, size: Size) -> str:
        """A size as an expression."""
        return size_text(size, self.symbols)

    def sizes(self, sizes: tuple[Size, ...]) -> str:
        return str(sizes) if all(isinstance(n, int) for n in sizes) else literal_tuple(map(self.size, sizes))

    def view(self, place: BufferView) -> str:
        """A view as an expression: no operator below autograd, where nobody asks what it is a view of."""
        source, shape, strides = self.identifier(place.source), self.sizes(place.shape), self.sizes(place.strides)
        if self.below_autograd:
            return f"_view({source}, {shape}, {strides}, {place.offset})"
        return f"{source}.as_strided({shape}, {strides}, {source}.storage_offset() + {place.offset})"

    def bind(self, hint: str, value: object) -> str:
        """A global name for the value; the same object gets the same name."""
        for name, known in self.space.items():
            if known is value:
                return name
        name = self._free("_" + re.sub(r"\W", "_", hint))
        self.space[name] = value
        return name


def write(plan: Plan, gm: fx.GraphModule, compile_body: CompileBody = run_eagerly) -> tuple[str, dict[str, object]]:
    """(source of `call(args)`, its globals except for the native entries)."""
    targets = _targets(plan)
    w = LauncherText(
        space={
            "_empty": unstable.empty_strided_cpu,
            "_empty_cuda": unstable.empty_strided_cuda,
            "_view": unstable.reinterpret_tensor,
            "_empty_on": torch.empty_strided,
            "_restride": restride,
            "_below_autograd": below_autograd,
        },
        runtime=plan.runtime,
        compile_body=compile_body,
        below_autograd=all(isinstance(target, OpOverload) and not is_custom(target) for target in targets),
    )
    for name in plan.inputs:
        w.identifier(name)
    w.bindings = _bindings(w, plan)
    body = [line for name in plan.inputs for line in w.bindings.get(name, ())]
    for step in plan.steps:
        body += _WRITERS[type(step)](w, step, gm)
    outputs = (w.identifier(o) if isinstance(o, str) else literal(w, o) for o in plan.outputs)
    body.append(f"return {literal_tuple(outputs)}")
    head = [f"{', '.join(map(w.identifier, plan.inputs))}{',' if len(plan.inputs) == 1 else ''} = args"]
    head = [*(head if plan.inputs else []), "args.clear()"]
    if targets and w.below_autograd:
        head, body = [*head, "with _below_autograd():"], [f"    {line}" for line in body]
    return "\n".join(["def call(args):", *(f"    {line}" for line in head + body)]) + "\n", w.space


def _bindings(w: LauncherText, plan: Plan) -> dict[str, list[str]]:
    """For each value that binds symbols which the plan uses, the lines that read them."""
    used: set[Symbol] = set()
    for step in plan.steps:
        if isinstance(step, Run):
            used |= {n for n in step.numbers if isinstance(n, Symbol)}
        elif isinstance(step, CallStep) and step.call.size is not None:
            used |= symbols(step.call.size)
        layout = step.layout if isinstance(step, (Allocate, CallStep)) else None
        if layout is not None:
            used |= symbols_of((*layout.shape, *layout.strides))
    lines: dict[str, list[str]] = {}
    shapes = Counter(plan.bindings[symbol].source for symbol in used if plan.bindings[symbol].what == "size")
    for source in sorted(source for source, count in shapes.items() if count > 1):
        lines[source] = [f"{w.identifier(f'{source}.shape')} = {w.identifier(source)}.shape"]
    for symbol in sorted(used, key=lambda s: s.name):
        binding = plan.bindings[symbol]
        name, source = w.identifier(f"${symbol.name}"), w.identifier(binding.source)
        w.symbols[symbol] = name
        shape = w.identifier(f"{binding.source}.shape") if shapes[binding.source] > 1 else f"{source}.shape"
        lines.setdefault(binding.source, []).append(f"{name} = {_read(source, shape, binding)}")
    return lines


def _read(source: str, shape: str, binding: SymbolBinding) -> str:
    """The symbol that the value binds. Attributes and whole tuples take less time than methods with arguments."""
    read = {
        "number": source,
        "size": f"{shape}[{binding.dim}]",
        "stride": f"{source}.stride()[{binding.dim}]",
        "offset": f"{source}.storage_offset()",
    }[binding.what]
    read = f"({read} - {binding.shift})" if binding.shift else read
    return read if binding.factor == 1 else f"{read} // {binding.factor}"


def executed(source: str, space: dict[str, object]) -> BoxedFn:
    """The function `call` of the source, with `space` as its globals."""
    space = {**OWNER, **space}
    exec(compile(source, "<framesmith launcher>", "exec"), space)
    call: BoxedFn = space["call"]  # type: ignore[assignment]
    return call


def below_autograd() -> Any:
    """A guard under which ATen calls skip autograd: the graph has no gradients of its own to record.

    Nor views: operators that compute a new tensor may well take a view of it inside, and autograd would then refuse to
    let the user change the result.
    """
    return unstable.AutoDispatchBelowADInplaceOrView()


def _targets(plan: Plan) -> list[object]:
    """The functions that the plan calls, those of numbers aside."""
    copies: list[object] = [COPY_ALL for step in plan.steps if isinstance(step, CopyStep)]
    nodes = [step.call.node for step in plan.steps if isinstance(step, CallStep) and step.view is None]
    calls = [n for n in nodes if n.op == "call_function" and n.target not in (operator.getitem, *FUNCTIONS)]
    inner = [target for n in calls for body in bodies_of(n) for target in calls_of(body.graph)]
    others = [n.target for n in calls if n.target not in BODIES and not is_symbolic(n.meta.get("val"))]
    return [*copies, *others, *(target for target in inner if target not in (operator.getitem, *FUNCTIONS, *BODIES))]


def _allocate(w: LauncherText, step: Allocate, gm: fx.GraphModule) -> list[str]:
    name, layout = w.identifier(step.name), step.layout
    if step.reuse is not None:
        return [f"{name} = {w.identifier(step.reuse)}"]
    dtype, sizes = (
        w.bind(layout.dtype, DTYPES[layout.dtype].torch),
        f"{w.sizes(layout.shape)}, {w.sizes(layout.strides)}",
    )
    # Without an operator, in a third of the time; on CUDA that is on the current device.
    if layout.device == "cpu":
        return [f"{name} = _empty({sizes}, {dtype})"]
    if layout.device.startswith("cuda") and torch.cuda.device_count() == 1:
        return [f"{name} = _empty_cuda({sizes}, {dtype})"]
    device = w.bind(layout.device, _device(layout.device))  # always said: the default device may be another
    return [f"{name} = _empty_on({sizes}, dtype={dtype}, device={device})"]


_device = functools.cache(torch.device)


def _run(w: LauncherText, step: Run, gm: fx.GraphModule) -> list[str]:
    numbers = [w.identifier(n.name) if isinstance(n, Number) else w.symbols[n] for n in step.numbers]
    return [f"{step.entry}({', '.join([*(w.identifier(b) for b in step.buffers), *numbers])})"]


def _call(w: LauncherText, step: CallStep, gm: fx.GraphModule) -> list[str]:
    node, name = step.call.node, w.identifier(step.call.name)
    if step.view is not None:
        return [f"{name} = {w.view(step.view)}"]
    if step.call.size is not None:
        return [f"{name} = {w.size(step.call.size)}"]
    lines = [f"{name} = {call_text(w, node, gm)}", *w.bindings.get(step.call.name, ())]
    if step.layout is not None and node.op == "call_function":
        strides = w.sizes(step.layout.strides)
        lines += [f"if {name}.stride() != {strides}:", f"    {name} = _restride({name}, {strides})"]
    return lines


def method_text(w: LauncherText, node: fx.Node) -> str | None:
    """The node as a method of its first argument, if it is a view that has one: that takes less time than the operator.

    Methods of C alone: those written in Python take more.
    """
    name = op_name(node.target)
    method = getattr(unstable.TensorBase, name, None)
    if not is_view(node.target) or not callable(method) or getattr(torch.Tensor, name) is not method or node.kwargs:
        return None
    source, *rest = node.args
    return f"{literal(w, source)}.{name}({', '.join(literal(w, a) for a in rest)})"


def call_text(w: LauncherText, node: fx.Node, gm: fx.GraphModule) -> str:
    """The expression that computes the node."""
    if is_body(node):
        return "None"  # the calls that take it are bound with it
    if node.target in BODIES:
        function = w.bind(node.name, runner(node, w.body))
        return f"{function}({', '.join(literal(w, one) for one in operands_of(node))})"
    if node.op == "get_attr":
        return w.bind(str(node.target), operator.attrgetter(str(node.target))(gm))
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


def literal(w: LauncherText, value: object) -> str:
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
        return literal_tuple(literal(w, v) for v in value)
    return w.bind(f"const_{type(value).__name__}", value)


def literal_tuple(parts: Iterable[str]) -> str:
    """The source text of a tuple."""
    texts = list(parts)
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"


def _copies(w: LauncherText, step: CopyStep, gm: fx.GraphModule) -> list[str]:
    function = w.bind("copy_all", COPY_ALL._op)
    targets, sources = (f"[{', '.join(map(w.identifier, names))}]" for names in (step.targets, step.sources))
    return [f"{function}({targets}, {sources})"]


_WRITERS: dict[type, Callable[..., list[str]]] = {
    Allocate: _allocate, Run: _run, CallStep: _call, CopyStep: _copies,
    Drop: lambda w, step, _: [f"del {', '.join(map(w.identifier, step.names))}"],
}  # fmt: skip
