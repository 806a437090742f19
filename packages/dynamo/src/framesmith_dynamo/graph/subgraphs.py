"""Subgraphs: the body of a function transform, recorded in the graph and then extracted into a module of its own.

The body is recorded after the last node, like everything else. Its arguments and the nodes that it captures become
placeholders of the subgraph. Numbers computed from captured values stay outside.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.graphs.modules import new_module
from framesmith_aten.graphs.transforms import BodyInterpreter, PullBack
from framesmith_aten.layouts import storage_id
from framesmith_aten.meta import EXAMPLE, MODE_CHANGE
from framesmith_aten.nested import tensors_in
from framesmith_aten.recording import effects_of
from framesmith_aten.symbolic import equal, is_symbolic, is_unbacked
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.graph.builder import ESCAPED, fake_of_node
from framesmith_guards.torch_adapter import aten

if TYPE_CHECKING:
    from framesmith_aten.meta import Effects
    from framesmith_dynamo.graph.builder import GraphBuilder

CHANGES_TENSOR = register_break(
    "body-changes-tensor",
    what="a function under a transform, such as torch.vmap, or a method of a torch.autograd.Function changes a tensor "
    "that it did not make",
    why="its body becomes a graph within the graph, which may change only what it makes itself, and what "
    "ctx.mark_dirty names",
    hint="return the new value, and change the tensor outside of the function",
)
CHANGES_MODE = register_break(
    "body-changes-mode",
    what="a function under a transform, such as torch.vmap, changes a mode of torch (no_grad, autocast)",
    why="its body becomes a graph within the graph, which is run in the modes of the call",
    hint="put the context around the call of the transformed function",
)
READS_NUMBER = register_break(
    "body-reads-number",
    what="a function under a transform, such as torch.vmap, or a method of a torch.autograd.Function computes with a "
    "number that depends on a tensor of its own",
    why="the number would differ between examples, and a graph within the graph gives tensors only",
    hint="compute with tensors instead of numbers",
)
DRAWS_AGAIN = register_break(
    "derivative-draws-again",
    what="a derivative of what a compiled function has computed with random numbers is requested within it",
    why="the derivative computes it again, and would draw other numbers",
    hint="draw the numbers before, from tensors that are not differentiated",
)
#: The id of the break for a body that behaves differently under the transform than while it was traced.
TRANSFORM_DIFFERS: Final = "body-differs"
DIFFERS = register_break(
    TRANSFORM_DIFFERS,
    what="an operation under a transform, such as torch.vmap, gives another shape or dtype than it gives without",
    why="the body is traced on one example, and its Python would have seen something else",
    hint="call the transformed function outside the compiled function, and report the operation to torch",
)


@dataclass(frozen=True)
class Cut:
    """The nodes of a body as a `module`, the outer nodes that it has `captured`, and the nodes' effects."""

    module: fx.GraphModule
    captured: list[fx.Node]
    effects: list[Effects]


@dataclass(frozen=True)
class Subgraph:
    """An extracted subgraph: the outer graph's `node` that holds it, and the outer nodes that it has `captured`."""

    node: fx.Node
    captured: list[fx.Node]
    effects: list[Effects]


def last_node(builder: GraphBuilder) -> fx.Node:
    last: fx.Node = next(iter(reversed(builder.graph.nodes)))
    return last


def nodes_after(last: fx.Node) -> list[fx.Node]:
    """Return the nodes after `last`, in order."""
    found = []
    node = last.next
    while node.op != "root":
        found.append(node)
        node = node.next
    return found


def erase(builder: GraphBuilder, nodes: Sequence[fx.Node]) -> None:
    """Remove these nodes, given in order; a tensor computed by one of them breaks the graph if it is used."""
    for node in reversed(nodes):
        builder.erase(node)
    inside = {*nodes}
    builder.numbers.forget(inside)
    for ref in builder.refs.values():
        ref.forget_in(inside)


def extract_subgraph(
    builder: GraphBuilder,
    last: fx.Node,
    examples: Sequence[fx.Node],
    results: Sequence[fx.Node | None],
    writable: Sequence[fx.Node] = (),
    modes: bool = False,
    numbers: bool = False,
) -> Subgraph:
    """Extract the nodes recorded after `last` as a function from `examples` and captured nodes to `results`.

    It may write to those of the examples that are `writable`, with `modes` change torch's modes, which whoever runs it
    restores, and with `numbers` compute with numbers of its own tensors, of which each run has others. Raises
    GraphBreak where the body does what a subgraph may not do. Its values cannot be used afterwards.
    """
    return held(builder, cut(builder, last, examples, results, writable, modes, numbers))


def cut(
    builder: GraphBuilder,
    last: fx.Node,
    examples: Sequence[fx.Node],
    results: Sequence[fx.Node | None],
    writable: Sequence[fx.Node] = (),
    modes: bool = False,
    numbers: bool = False,
) -> Cut:
    """Do the same without a node that holds the subgraph, so that the nodes before these can be cut, too."""
    nodes = _recorded(last, examples if numbers else None)
    if not modes and (changed := next((node for node in nodes if MODE_CHANGE.get(node)), None)) is not None:
        raise GraphBreak(CHANGES_MODE, str(changed.target))
    captured = _captured(nodes, examples, results)
    _check_writes(nodes, [one for one in (*examples, *captured) if one not in writable])
    module = _module(builder, nodes, [*examples, *captured], results)
    effects = [effects_of(node) for node in nodes]
    erase(builder, nodes)
    return Cut(module, captured, effects)


def held(builder: GraphBuilder, body: Cut) -> Subgraph:
    """Return a body with a node that holds it. Raises GraphBreak if what it captures was in another body."""
    if not all(EXAMPLE.on(one) for one in body.captured):
        raise GraphBreak(ESCAPED)
    return Subgraph(_held(builder, body.module), body.captured, body.effects)


def copied_subgraph(
    builder: GraphBuilder, last: fx.Node, examples: Sequence[fx.Node], results: Sequence[fx.Node]
) -> Subgraph:
    """Return a subgraph of the nodes recorded after `last`, which stay."""
    nodes = _recorded(last)
    captured = _captured(nodes, examples, results)
    module = _module(builder, nodes, [*examples, *captured], results)
    return Subgraph(_held(builder, module), captured, [effects_of(node) for node in nodes])


def dependent_subgraph(
    builder: GraphBuilder, sources: Sequence[fx.Node], results: Sequence[fx.Node], constants: Container[fx.Node] = ()
) -> Subgraph | None:
    """Return a subgraph from `sources` to `results`, of copies of the nodes that depend on them; None: no result does.

    Nothing depends on `constants`. What the subgraph captures must not be written to after the first source, or it
    would not have the values that the nodes had. Raises GraphBreak where it may be, or a copy would compute another
    value than its node.
    """
    after = nodes_after(sources[0])
    nodes = _depending(after, sources, constants)
    if not any(one in nodes or one in sources for one in results):
        return None
    for node in nodes:
        if MODE_CHANGE.get(node):
            raise GraphBreak(CHANGES_MODE, str(node.target))
        if is_symbolic(EXAMPLE.get(node)) or node.target is aten._assert_scalar.default:
            raise GraphBreak(READS_NUMBER, str(node.target))
        if effects_of(node).random:
            raise GraphBreak(DRAWS_AGAIN, str(node.target))
    captured = _captured(nodes, sources, results)
    _check_writes(after, [*sources, *captured])
    module = _module(builder, nodes, [*sources, *captured], results)
    return Subgraph(_held(builder, module), captured, [effects_of(node) for node in nodes])


def _depending(after: Sequence[fx.Node], sources: Sequence[fx.Node], constants: Container[fx.Node]) -> list[fx.Node]:
    """Return the nodes that compute with the sources, and those that make the memory which these write to."""
    found: set[fx.Node] = set()
    memory: set[int] = set()
    given = {*sources}
    while True:
        before = len(found)
        for node in after:
            if node in given or node in constants or node.op == "placeholder":
                continue
            uses = any(one in found or one in given for one in node.all_input_nodes)
            if uses or any(storage_id(one) in memory for one in _strided(EXAMPLE.get(node))):
                found.add(node)
                memory.update(storage_id(one) for one in _strided(effects_of(node).written))
        if len(found) == before:
            break
    bodies = {one for node in found for one in node.all_input_nodes if one.op == "get_attr"}
    return [node for node in after if node in found or node in bodies]


def _captured(
    nodes: Sequence[fx.Node], examples: Sequence[fx.Node], results: Sequence[fx.Node | None]
) -> list[fx.Node]:
    """Return the nodes outside of a body that it uses or returns, without its examples."""
    inside = dict.fromkeys(nodes)
    used = [one for node in nodes for one in node.all_input_nodes]
    used += [one for one in results if one is not None]
    return [one for one in dict.fromkeys(used) if one not in inside and one not in examples]


def _recorded(last: fx.Node, examples: Container[fx.Node] | None = None) -> list[fx.Node]:
    """Return the nodes of the body in order, without numbers computed outside of it and assertions about them.

    With `examples`, it may compute numbers of its own tensors and of these.
    """
    found: dict[fx.Node, None] = {}
    for node in nodes_after(last):
        if node.op == "placeholder":  # an input that the body is the first to use
            continue
        inner = any(one in found or one in (examples or ()) for one in node.all_input_nodes)
        number = is_symbolic(EXAMPLE.get(node)) or node.target is aten._assert_scalar.default
        if number and inner and examples is None:
            raise GraphBreak(READS_NUMBER, str(node.target))
        if inner or not number:
            found[node] = None
    return [*found]


def _check_writes(nodes: Iterable[fx.Node], outside: Iterable[fx.Node]) -> None:
    older = {storage_id(fake) for node in outside for fake in _strided(fake_of_node(node))}
    for node in nodes:
        if any(storage_id(fake) in older for fake in _strided(effects_of(node).written)):
            raise GraphBreak(CHANGES_TENSOR, str(node.target))


def _strided(value: Any) -> list[torch.Tensor]:
    return [fake for fake in tensors_in(value) if fake.layout is torch.strided]


def _module(
    builder: GraphBuilder, nodes: Sequence[fx.Node], operands: Sequence[fx.Node], results: Sequence[fx.Node | None]
) -> fx.GraphModule:
    graph = fx.Graph()
    inner: dict[fx.Node, fx.Node] = {}
    names = {operand.name for operand in operands}
    for operand in operands:
        inner[operand] = graph.placeholder(operand.name if operand not in inner else _unused(operand.name, names))
        EXAMPLE.set(inner[operand], fake_of_node(operand))
    for node in nodes:
        inner[node] = graph.node_copy(node, inner.__getitem__)
    graph.output(tuple(None if node is None else inner[node] for node in results))
    return new_module({name: body for name, body in builder.bodies.items() if _names(nodes, name)}, graph)


def _unused(name: str, names: set[str]) -> str:
    """Return a name for an operand that is given again, and add it to the names."""
    found = next(each for number in count(1) if (each := f"{name}_{number}") not in names)
    names.add(found)
    return found


def _names(nodes: Iterable[fx.Node], attribute: str) -> bool:
    return any(node.op == "get_attr" and node.target == attribute for node in nodes)


def _held(builder: GraphBuilder, module: fx.GraphModule) -> fx.Node:
    name = f"body_{len(builder.bodies)}"
    builder.bodies[name] = module
    node = builder.graph.create_node("get_attr", name)
    EXAMPLE.set(node, _Compared(module).run)
    return node


class _Compared(BodyInterpreter):
    """Runs a body under its transform, on fakes, and compares each result with that of the trace."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op not in ("get_attr", "output") and not MODE_CHANGE.get(n):
            _compare(n, result, EXAMPLE.of(n))
        return result


def _compare(node: fx.Node, seen: Any, traced: Any) -> None:
    if isinstance(traced, torch.Tensor):
        if not isinstance(seen, torch.Tensor) or not _is_same(seen, traced):
            raise TraceUnsupported(TRANSFORM_DIFFERS, str(node.target), "the trace saw another shape or dtype")
    elif isinstance(traced, (list, tuple)) and not isinstance(traced, torch.Size):
        for one, other in zip(seen, traced, strict=True):
            _compare(node, one, other)
    elif isinstance(traced, Mapping):
        for key in traced:
            _compare(node, seen[key], traced[key])
    elif isinstance(traced, PullBack) or is_unbacked(traced) or is_unbacked(seen):
        return  # the results of the one are compared; of the others each run has its own
    elif traced != seen:
        raise TraceUnsupported(TRANSFORM_DIFFERS, str(node.target), f"it gives {seen}, and the trace saw {traced}")


def _is_same(seen: torch.Tensor, traced: torch.Tensor) -> bool:
    if (seen.dtype, seen.device, seen.dim(), seen.layout) != (traced.dtype, traced.device, traced.dim(), traced.layout):
        return False
    bits = (seen.is_conj(), seen.is_neg()) == (traced.is_conj(), traced.is_neg())
    pairs = zip(seen.shape, traced.shape, strict=True)
    return bits and all(is_unbacked(one) or is_unbacked(other) or equal(one, other) for one, other in pairs)
