"""Function transforms in a trace: their bodies are traced, and become a call in the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from framesmith_aten.recording import effects_of
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.graph.subgraphs import Subgraph
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values.base import Args, Kwargs, TracedRaise, Tracer, Value
from framesmith_dynamo.values.callables import handles
from framesmith_dynamo.values.transform_levels import Level
from framesmith_sideeffects import MutationRefused

if TYPE_CHECKING:
    from torch import fx

BODY_EFFECT = register_break(
    "body-effect",
    what="a function under a transform, such as torch.vmap, or a Function's backward changes an object that it did "
    "not make",
    why="its body becomes a graph within the graph: it runs in another order or number than the program's calls",
    hint="return the results of the function, and change objects outside of it",
)
BODY_RAISES = register_break(
    "body-raises",
    what="a function under a transform, such as torch.vmap, or a method of a torch.autograd.Function raises an "
    "exception, or returns a result that the transform rejects",
    why="torch's own transform, or the Function, raises the error",
    hint="see the error that follows",
    passing=True,
)
ASKS_LEVEL = register_break(
    "asks-transform-level",
    what="a function under a transform, such as torch.vmap, reads the current transform",
    why="its body is traced on examples, outside of the transform",
    hint="call the transformed function outside the compiled function",
)


@dataclass(frozen=True, eq=False)
class Batched(Level):
    """A `vmap`: its size, the node recorded before its body, its batches, their dimensions, and examples of them."""

    size: Value
    randomness: Value
    last: fx.Node
    batches: Sequence[Value]
    dims: Sequence[int]
    examples: Sequence[Value]


@handles(unstable.maybe_current_level)
def maybe_current_level(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """No transform is active around a frame that is compiled."""
    if tr.facts.body.level:
        raise GraphBreak(ASKS_LEVEL)
    return tr.constant(None)


@contextmanager
def in_body(tr: Tracer, what: str) -> Iterator[None]:
    """Context manager for tracing a body, named `what`; breaks where it changes outer objects, or raises."""
    try:
        with tr.journal.nested(what):
            yield
    except MutationRefused as error:
        raise GraphBreak(BODY_EFFECT, str(error)) from error
    except TracedRaise as error:
        raise GraphBreak(BODY_RAISES, error.value.describe()) from error


@contextmanager
def under(tr: Tracer, level: Level) -> Iterator[None]:
    """Context manager for tracing a body under a function transform."""
    body = tr.facts.body
    before, body.level = body.level, level
    try:
        yield
    finally:
        body.level = before


def traced_body(
    tr: Tracer, level: Level, function: Value, arguments: Callable[[], Sequence[Value]], kwargs: Kwargs
) -> Value:
    """Return the result of a function under a transform, for `arguments()`, which returns new containers."""
    with under(tr, level), in_body(tr, "a function under a transform"):
        return tr.call(function, arguments(), kwargs)


def recorded_call(
    tr: Tracer,
    target: Callable[..., Any],
    bodies: Sequence[Subgraph],
    settings: Sequence[Any],
    operands: Sequence[Value],
) -> list[Value]:
    """Record a call of `target` with bodies in the graph, and return its results. It may fail, as the bodies would."""
    first = *(body.node for body in bodies), *settings
    return recorded(tr, target, first, bodies, operands)


def recorded(
    tr: Tracer, target: Callable[..., Any], first: Sequence[Any], bodies: Sequence[Subgraph], operands: Sequence[Value]
) -> list[Value]:
    """Record a call of `target` with its `first` arguments, in which are the nodes of the bodies."""
    captured = [one for body in bodies for one in body.captured]
    made = tr.call_torch(target, (*first, *operands, *captured), {})
    [call] = bodies[0].node.users
    effects = effects_of(call)
    for one in (effect for body in bodies for effect in body.effects):
        effects.add_body(one)
    return made.unpack(tr)
