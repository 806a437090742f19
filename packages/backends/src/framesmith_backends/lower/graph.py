"""FX graph -> program: each node becomes definitions by its rule, or an ATen call with the reason noted."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import fx

from framesmith_aten.contract import OnError
from framesmith_aten.graphs.control_flow import BODIES, bodies_of
from framesmith_aten.graphs.nodes import is_pure
from framesmith_aten.graphs.numbers import FUNCTIONS, numbers_of
from framesmith_aten.graphs.tidying.cleanup import is_removable
from framesmith_aten.meta import CHECKPOINT_PATH, HELD, PHASE, TANGENT
from framesmith_aten.operators import is_mutable
from framesmith_aten.symbolic import has_symbols, is_assumed, is_symbolic, is_unbacked
from framesmith_backends.ir.dtypes import FLOAT8, FROM_TORCH
from framesmith_backends.ir.expr import Cast, Expr, Number, Op, walk
from framesmith_backends.ir.ops import OPS, emitter
from framesmith_backends.ir.program import BufferView, Call, Layout, Program, is_dense
from framesmith_backends.ir.symbolic.size import Sym, Undecided
from framesmith_backends.lower.compute import (
    losses,
    moments,
    normalization,
    pointwise,
    reductions,
    steps,
    thin_matmuls,
)
from framesmith_backends.lower.movement import copies, indexing, pooling, resampling, search, views
from framesmith_backends.lower.numbers import SizeConverter
from framesmith_backends.lower.registry import BODY_RULES, RULES, VIEWS
from framesmith_backends.lower.scope import Decline, Scope
from framesmith_backends.lower.tensor import Operand, Shape, Tensor, point, whole
from framesmith_backends.target import Target
from framesmith_guards.torch_adapter import OpOverload

# The modules whose import fills the tables.
RULE_MODULES = (
    pointwise, views, copies, reductions, moments, normalization, losses, pooling, resampling, indexing, search,
    steps, thin_matmuls,
)  # fmt: skip

#: Stands for the layout of a result that cannot be made, and that nothing uses.
NOT_MADE = Layout((), (), "f32", "none")

Lowered = Tensor | tuple[Tensor | None, ...] | Sym | Number | int | None


@dataclass(slots=True)
class Lowering:
    """The state of one lowering. `notes` says for each ATen call why it is one; `on_error` hears of rules that fail.

    Definitions of a body have names with a `prefix`: its expressions read those of the graph around it, too.
    """

    device: str
    target: Target
    on_error: OnError | None = None
    program: Program = field(default_factory=Program)
    values: dict[fx.Node, Lowered] = field(default_factory=dict)
    runtime: dict[fx.Node, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    positions: dict[fx.Node, int] = field(default_factory=dict)
    numbers: SizeConverter = field(default_factory=SizeConverter)
    prefix: str = ""


def layout_of(low: Lowering, value: object) -> Layout | str:
    """The layout of a tensor, or why a kernel cannot read or write the value."""
    if not isinstance(value, torch.Tensor):
        return f"a value of type {type(value).__name__}"
    if value.dtype not in FROM_TORCH:
        return f"dtype {value.dtype}"
    if value.device.type != low.device:
        return f"device {value.device}"
    if value.layout != torch.strided or value.is_conj() or value.is_neg():
        return f"layout {value.layout} or a lazy conjugate"
    shape, strides = low.numbers.sizes(value.shape), low.numbers.sizes(value.stride())
    if shape is None or strides is None:
        return "a symbolic shape that nothing in the graph binds"
    return Layout(shape, strides, FROM_TORCH[value.dtype], str(value.device))


def has_rule(op: OpOverload) -> bool:
    """Whether calls of the operator are lowered."""
    return str(op) in RULES or str(op) in VIEWS


def lower_graph(gm: fx.GraphModule, target: Target, device: str = "cpu", on_error: OnError | None = None) -> Lowering:
    """Lower every node of the graph, of tensors on that type of device, for kernels of the machine.

    A node whose rule fails becomes an ATen call, and `on_error` is called; without it, the error is raised.
    """
    low = Lowering(device, target, on_error)
    low.program.bindings = low.numbers.bindings
    for node in gm.graph.nodes:
        for value in _results(node):
            low.numbers.magnitudes.learn(value)
    for plain in (True, False):
        for node in gm.graph.find_nodes(op="placeholder"):
            low.numbers.bind(node.meta.get("val"), node.name, plain=plain)
    for position, node in enumerate(gm.graph.nodes):
        low.positions[node] = position
        _HANDLERS[node.op](low, node)
    low.program.recomputed = _recomputed(gm.graph)
    low.program.runtime = {node.name: name for node, name in low.runtime.items()}
    return low


def _recomputed(graph: fx.Graph) -> dict[int, int]:
    """Return the stage of each node that a backward pass recomputes: another checkpoint begins the next one."""
    found: dict[int, int] = {}
    of_tangents: set[fx.Node] = set()
    stage, last = 0, None
    for position, node in enumerate(graph.nodes):
        if TANGENT.get(node) or any(one in of_tangents for one in node.all_input_nodes):
            of_tangents.add(node)
            continue
        path = CHECKPOINT_PATH.get(node)
        if path is not None and PHASE.get(node) == "backward":
            stage, last = stage + (path != last), path
            found[position] = stage
    return found


def _external(low: Lowering, node: fx.Node) -> None:
    """A value that exists at run time under the node's own name."""
    low.runtime[node] = node.name
    value = node.meta.get("val")
    low.values[node] = None
    if node.op == "call_function":
        low.numbers.bind(value, node.name, plain=True)
    if is_symbolic(value) or isinstance(value, (bool, int, float)):
        low.program.numbers.add(node.name)
        low.values[node] = _number(low, node)
        return
    layout = layout_of(low, value)
    if isinstance(layout, Layout):
        low.program.layouts[node.name] = layout
        low.values[node] = whole(node.name, layout.shape, layout.dtype)


def _number(low: Lowering, node: fx.Node) -> Sym | Number | int | None:
    """The number that the node gives; None where kernels cannot compute with it."""
    value = node.meta["val"]
    if isinstance(value, torch.SymInt):
        found = low.numbers.readable(value)
        return low.numbers.own(value, node.name) if found is None else found
    if isinstance(value, torch.SymFloat):
        return Number(node.name)
    return value if type(value) is int else None


def _placeholder(low: Lowering, node: fx.Node) -> None:
    low.program.inputs.append(node.name)
    if HELD.on(node):
        low.program.held.add(node.name)
    _external(low, node)


def _get_attr(low: Lowering, node: fx.Node) -> None:
    _external(low, node)
    low.program.calls[node.name] = Call(node.name, node, (), low.positions[node])


def _call(low: Lowering, node: fx.Node) -> None:
    if node.target is operator.getitem:
        source = node.args[0]
        found = low.values.get(source) if isinstance(source, fx.Node) else None
        if isinstance(found, tuple):
            low.values[node] = found[node.args[1]]  # type: ignore[index]
            return
    if isinstance(node.meta.get("val"), torch.SymInt):
        size = low.numbers.readable(node.meta["val"])
        if size is not None and not is_assumed(node.meta["val"]):
            low.values[node] = size
            return
    taken = str(node.target) in VIEWS and _is_assumed(node.meta.get("val"))
    reason = "a length that is to be checked" if taken else _lowered(low, node)
    if reason is not None:
        low.notes[node.name] = reason
        run_as_call(low, node)


def _is_assumed(value: object) -> bool:
    """Whether part of a result's layout is unbacked and assumed to be another number.

    The check that it is that one asks for it at a call, of what the operator itself gives.
    """
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or not has_symbols(value):
        return False
    return any(map(is_assumed, numbers_of(value).values()))


def run_as_call(low: Lowering, node: fx.Node) -> None:
    _external(low, node)
    needs = tuple(dict.fromkeys(realize(low, n) for n in node.all_input_nodes))
    of_numbers = node.target in FUNCTIONS
    # What is unused is in the graph because it may raise.
    stays = not (is_pure(node) or of_numbers) or not node.users
    position = _earliest(low, needs) if of_numbers else low.positions[node]
    fails = not (of_numbers or is_removable(node))
    low.program.calls[node.name] = Call(node.name, node, needs, position, stays, may_fail=fails)


def _earliest(low: Lowering, needs: Iterable[str]) -> int:
    """The place from which on a number made of these is known: computed there, it does not come between kernels."""
    return max((low.program.calls[name].position for name in needs if name in low.program.calls), default=0)


def _results(node: fx.Node) -> tuple[object, ...]:
    value = node.meta.get("val")
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _lowered(low: Lowering, node: fx.Node) -> str | None:
    """Lower the node by its rule; the reason if it cannot be."""
    key = str(node.target)
    found = RULES.get(key) or VIEWS.get(key) or BODY_RULES.get(node.target)
    if found is None:
        return "no rule"
    layouts: list[Layout] = []
    for at, value in enumerate(_results(node)):
        layout = layout_of(low, value)
        if isinstance(layout, Layout) and key not in VIEWS and 0 in layout.shape:
            layout = "no elements"
        if isinstance(layout, str) and _is_used(node, at):
            return layout
        layouts.append(layout if isinstance(layout, Layout) else NOT_MADE)
    before = len(low.program.defs)
    read = (layout_of(low, arg.meta.get("val") if isinstance(arg, fx.Node) else None) for arg in node.args)
    given = tuple(layout if isinstance(layout, Layout) else None for layout in read)
    made = [one.device for one in (*layouts, *given) if one is not None and one is not NOT_MADE]
    if not made:
        return "no result and no argument in memory"
    scope = Scope(
        low.program, f"{low.prefix}{node.name}", f"{node.name}: {key}", tuple(layouts), low.positions[node],
        made[0], target=low.target, given=given, lower_body=partial(lower_body, low),
    )  # fmt: skip
    try:
        args, kwargs = _arguments(low, node)
        result = found(scope, *args, **kwargs)
        low.values[node] = result if key in VIEWS else _finished(low, scope, result, layouts, before)
    except (Decline, Undecided) as decline:
        return _undone(low, before, str(decline))
    except Exception as error:
        if isinstance(error, TypeError) and any(is_symbolic(n.meta.get("val")) for n in node.all_input_nodes):
            return _undone(low, before, f"a number that changes between calls ({error})")
        if low.on_error is None:
            raise
        low.on_error(f"the operation {node.name} ({key})", error)
        return _undone(low, before, f"its rule failed: {type(error).__name__}: {error}")
    return None


def lower_body(low: Lowering, gm: fx.GraphModule, arguments: Sequence[Operand]) -> tuple[Program, list[Tensor]]:
    """Lower a body of these arguments, with the sizes of the graph around it; return its program and its results.

    Raises:
        Decline: Something of it is no definition.
    """
    inner = Lowering(low.device, low.target, low.on_error, numbers=low.numbers, prefix=f"{low.prefix}body.")
    given = iter(arguments)
    for position, node in enumerate(gm.graph.nodes):
        inner.positions[node] = position
        if node.op == "placeholder":
            value = next(given)
            inner.values[node] = None if isinstance(value, float) else value
            if isinstance(value, Tensor):
                inner.program.layouts[value.source] = low.program.layouts.get(value.source, NOT_MADE)
        elif node.op == "call_function":
            if is_unbacked(node.meta.get("val")):
                raise Decline(f"a body with a number of its own, {node.name}")
            _call(inner, node)
        elif node.op == "get_attr":
            raise Decline("a body with a constant")
        if node.name in inner.notes:
            raise Decline(f"in its body, {node.name} is a call: {inner.notes[node.name]}")
    given_back: Any = gm.graph.output_node().args[0]
    results = [inner.values.get(node) for node in given_back]
    tensors = [value for value in results if isinstance(value, Tensor)]
    if len(tensors) < len(results):
        raise Decline("a body that gives more than tensors")
    return inner.program, tensors


def _is_used(node: fx.Node, at: int) -> bool:
    """Whether anything takes the node's result number `at`."""
    items = isinstance(node.meta.get("val"), (tuple, list))
    return not items or any(user.target is not operator.getitem or user.args[1] == at for user in node.users)


def _undone(low: Lowering, before: int, reason: str) -> str:
    """Takes back the definitions made since there were `before`; gives the reason."""
    for name in list(low.program.defs)[before:]:
        del low.program.defs[name]
    return reason


def _arguments(low: Lowering, node: fx.Node) -> tuple[Any, Any]:
    if any(isinstance(arg, complex) for arg in (*node.args, *node.kwargs.values())):
        raise Decline("a complex number")

    def value(arg: fx.Node) -> object:
        if arg in bodies:
            return bodies_of(node)[bodies.index(arg)]
        found = low.values.get(arg)
        if isinstance(found, (int, Sym, Number)):
            return found
        if not isinstance(found, Tensor):
            raise Decline(f"argument {arg.name} is not a dense tensor on {low.device}")
        if 0 in found.shape:
            raise Decline(f"argument {arg.name} has no elements")
        return found

    bodies = node.args[: BODIES.get(node.target, 0)]
    args, kwargs = fx.map_arg((node.args, node.kwargs), value)  # type: ignore[arg-type]
    return args, kwargs


def _finished(low: Lowering, scope: Scope, result: Any, layouts: list[Layout], before: int) -> Lowered:
    """Check what the rule made and give each result the memory layout that eager would have."""
    many = isinstance(result, tuple)
    finished = tuple(
        None if t is None or layout is NOT_MADE else _in_layout(low, scope, t, layout)
        for t, layout in zip(result if many else (result,), layouts, strict=False)
    )
    for name in list(low.program.defs)[before:]:
        one = low.program.defs[name]
        if (one.reduction is not None or one.scan is not None) and _is_float8(one.body):
            raise Decline("sums of float8 numbers")
        for part in walk(one.body):
            if _computes_with_float8(part):
                raise Decline("arithmetic of float8 numbers")
            if isinstance(part, Op) and part.dtype == "f64" and emitter(OPS[part.name].llvm, "f64") is None:
                raise Decline(f"{part.name} in float64")
            if isinstance(part, Op) and low.target.on_gpu and not emitter(OPS[part.name].triton, part.args[-1].dtype):
                raise Decline(f"{part.name} on a GPU")
    return finished if many else finished[0]


def _is_float8(value: Expr) -> bool:
    """Whether it is such a number, chosen among some, or what one is converted to."""
    if value.dtype in FLOAT8:
        return True
    if isinstance(value, Cast):
        return _is_float8(value.value)
    return isinstance(value, Op) and OPS[value.name].chooses and any(map(_is_float8, value.args))


def _computes_with_float8(part: Expr) -> bool:
    """Whether more is done to float8 numbers than to choose among them and to convert them."""
    if isinstance(part, Cast):
        value = part.value
        while isinstance(value, Cast):
            value = value.value
        return part.dtype in FLOAT8 and isinstance(value, Op) and not OPS[value.name].chooses
    return isinstance(part, Op) and not OPS[part.name].chooses and any(map(_is_float8, part.args))


def _may_be_equal(one: Shape, other: Shape) -> bool:
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(a == b or isinstance(a, Sym) or isinstance(b, Sym) for a, b in pairs)


def _in_layout(low: Lowering, scope: Scope, t: Tensor, layout: Layout) -> Tensor:
    if t.shape != layout.shape or t.dtype != layout.dtype:
        if t.dtype == layout.dtype and _may_be_equal(t.shape, layout.shape):
            raise Decline("lengths of which only the guards say that they are equal")
        raise RuntimeError(
            f"rule for {scope.origin} made {t.dtype}{t.shape}, the graph says {layout.dtype}{layout.shape}"
        )
    if not is_dense(layout):
        raise Decline(f"a result with gaps or overlaps: strides {layout.strides}")
    if t.source in scope.defined and t.index == point(t.shape) and low.program.layouts[t.source] == layout:
        return t
    copied = scope.copied(t)
    low.program.layouts[copied.source] = layout
    low.program.defs[copied.source] = replace(low.program.defs[copied.source], layout=layout)
    return copied


def realize(low: Lowering, node: fx.Node) -> str:
    """The name under which the node's value exists at run time, made to exist if it was only an index map."""
    found = low.runtime.get(node)
    if found is not None:
        return found
    value = low.values[node]
    if isinstance(value, Tensor) and str(node.target) not in VIEWS and not _is_view_item(node):
        low.runtime[node] = value.source
        return value.source
    low.runtime[node] = node.name
    if isinstance(value, (int, Sym)):
        low.program.numbers.add(node.name)
        call = Call(node.name, node, (), 0, size=value)
        position = _earliest(low, low.program.numbers_for(call))
        low.program.calls[node.name] = replace(call, position=position)
        return node.name
    needs = tuple(dict.fromkeys(realize(low, n) for n in node.all_input_nodes))
    low.program.calls[node.name] = Call(node.name, node, needs, low.positions[node])
    low.notes[node.name] = "a view needed as a tensor"
    place = _view(low, node)
    if place is not None:
        low.program.views[node.name] = place
    return node.name


def _view(low: Lowering, node: fx.Node) -> BufferView | None:
    """The position of a view in its buffer, or None."""
    viewed = node.args[0] if node.target is not operator.getitem else node.args[0].args[0]  # type: ignore[union-attr]
    base = low.program.view(low.runtime[viewed]) if isinstance(viewed, fx.Node) else None
    value, whole = node.meta.get("val"), viewed.meta.get("val") if isinstance(viewed, fx.Node) else None
    if base is None or not isinstance(value, torch.Tensor) or not isinstance(whole, torch.Tensor):
        return None
    if value.dtype != whole.dtype or value.untyped_storage()._cdata != whole.untyped_storage()._cdata:
        return None
    shape, strides = low.numbers.sizes(value.shape), low.numbers.sizes(value.stride())
    moved = low.numbers.sizes([value.storage_offset() - whole.storage_offset()])
    if shape is None or strides is None or moved is None:
        return None
    return BufferView(base.source, base.offset + moved[0], shape, strides)


def _is_view_item(node: fx.Node) -> bool:
    """Whether this is an item of a view that returns several tensors (split, unbind)."""
    return node.target is operator.getitem and str(node.args[0].target) in VIEWS  # type: ignore[union-attr]


def _output(low: Lowering, node: fx.Node) -> None:
    results = node.args[0]
    for result in results if isinstance(results, (tuple, list)) else (results,):
        low.program.outputs.append(realize(low, result) if isinstance(result, fx.Node) else result)


_HANDLERS: dict[str, Callable[[Lowering, fx.Node], None]] = {
    "placeholder": _placeholder,
    "get_attr": _get_attr,
    "call_function": _call,
    "output": _output,
}


def why_not_functional(gm: fx.GraphModule) -> str | None:
    """Why the graph cannot be scheduled freely: it mutates something other than by trailing copies."""
    mutated = False
    for node in gm.graph.nodes:
        if node.op not in _HANDLERS:
            return f"node {node.name} is a {node.op}: expected ATen calls only"
        if node.op != "call_function":
            continue
        if is_mutable(node.target):
            mutated = True
        elif mutated and node.target is not operator.getitem:
            return f"{node.name} runs after a mutation"
    return None
