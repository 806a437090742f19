"""The cache of a compiler's programs, one for each pattern of recorded passes.

The engine treats a float that a derivative saves (a bound, a slope, a probability) as part of the pass, so that a
schedule of it makes another pass each time. Floats are lifted to inputs of the program.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

from torch import fx

from framesmith_aten.contract import OnError
from framesmith_autograd_compiler import calls
from framesmith_autograd_compiler.errors import warn_of_failure
from framesmith_autograd_compiler.program import Program
from framesmith_autograd_compiler.segments.runner import CompilerFn
from framesmith_autograd_compiler.segments.user_code import TraceCall

#: Programs in a cache; the least recently used one is dropped.
CACHE_SIZE: Final = 256


@dataclass
class Programs:
    """Programs by pattern. One thread at a time uses it, inside the engine's gate.

    `trace_call` traces hooks and Functions' backwards into their graphs; without it, all of them stay opaque.
    """

    compiler_fn: CompilerFn
    on_failure: OnError = warn_of_failure
    trace_call: TraceCall | None = None
    _by_pattern: OrderedDict[Any, Program] = field(default_factory=OrderedDict)

    def find(self, graph: fx.Graph) -> Program | None:
        """Return the program of an earlier pass of the same pattern, or None."""
        pattern = pattern_of(graph)
        known = self._by_pattern.get(pattern)
        if known is not None:
            self._by_pattern.move_to_end(pattern)
        return known

    def make(self, graph: fx.Graph) -> Program:
        program = Program(graph, self.compiler_fn, self.on_failure, self.trace_call)
        pattern = pattern_of(graph)
        if pattern is not None:
            self._by_pattern[pattern] = program
            if len(self._by_pattern) > CACHE_SIZE:
                self._by_pattern.popitem(last=False)
        return program


def lift_floats(graph: fx.Graph) -> list[float]:
    """Replace the floats in the graph's derivatives by placeholders `number_0`, ...; return the floats."""
    floats: list[float] = []
    first = next(iter(graph.nodes))

    def placeholder(value: Any) -> Any:
        if type(value) is float:
            with graph.inserting_before(first):
                node = calls.PassInput("number", len(floats)).placeholder(graph)
            floats.append(value)
            return node
        if type(value) in (list, tuple):
            return type(value)(map(placeholder, value))
        return value

    for node in list(graph.nodes):
        if isinstance(node.target, calls.NodeCall):
            node.args = tuple(map(placeholder, node.args))
    return floats


def pattern_of(graph: fx.Graph) -> Any:
    """Return a key, equal for graphs of the same calls of the same operands; None where an operand has no hash."""
    positions = {node: at for at, node in enumerate(graph.nodes)}

    def shown(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return fx.Node, positions[value]
        if isinstance(value, (list, tuple)):
            return type(value), *map(shown, value)
        return type(value), value.hex() if type(value) is float else value

    pattern = tuple((node.op, _identity(node), shown(node.args), shown([*node.kwargs.items()])) for node in graph.nodes)
    try:
        hash(pattern)
    except TypeError:
        return None
    return pattern


def _identity(node: fx.Node) -> Any:
    """Return the callee of a node, or what a placeholder stands for."""
    if node.op == "placeholder":
        return calls.PASS_INPUT.of(node)
    return node.target.cls if isinstance(node.target, calls.Evaluation) else node.target
