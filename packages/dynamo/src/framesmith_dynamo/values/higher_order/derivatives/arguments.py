"""Arguments of a function that is differentiated: structures, of whose tensors some are differentiated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values.base import Kwargs, Tracer, Value
from framesmith_dynamo.values.containers import TupleValue, new_list
from framesmith_dynamo.values.higher_order.subgraphs import traced_body
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_dynamo.values.transform_levels import Kind, Level
from framesmith_guards.contexts import ambient

NOT_DIFFERENTIATED = register_break(
    "function-not-differentiated",
    what="torch.func.grad, vjp, jvp, linearize, functionalize or a Jacobian of a function is called in a way that a "
    "graph does not support",
    why="derivatives of other objects than tensors are requested, keywords contain tensors, the result "
    "has another type or structure than the transform expects or a history or memory that a graph would not give it, "
    "or inference mode is active",
    hint="see the error that follows; where there is none, pass tensors by position, outside of inference mode",
)


@dataclass(frozen=True)
class Tree:
    """A flattened value: its leaves, and the structure to rebuild it."""

    leaves: list[Value]
    spec: Value

    def again(self, tr: Tracer, leaves: Sequence[Value]) -> Value:
        """Return the same structure with other leaves."""
        return tr.call(tr.constant(unstable.tree_unflatten), (new_list(tr, [*leaves]), self.spec), {})

    def are_tensors(self) -> bool:
        return all(isinstance(one, TensorValue) for one in self.leaves)


def tree_of(tr: Tracer, value: Value) -> Tree:
    leaves, spec = tr.call(tr.constant(unstable.tree_flatten), (value,), {}).unpack(tr)
    return Tree(leaves.unpack(tr), spec)


class Arguments:
    """The arguments by position. Breaks where torch may reject them, or the choice of those to differentiate."""

    def __init__(self, tr: Tracer, given: Sequence[Value], argnums: Value) -> None:
        if torch.is_inference_mode_enabled():
            raise GraphBreak(NOT_DIFFERENTIATED, "inference mode is active")
        self.given = given
        self.trees = [tree_of(tr, one) for one in given]
        self.is_one = argnums.python_type() is int
        self.chosen = [*range(len(given))] if argnums.is_none() else _chosen(argnums, len(given))
        self.tensors = [leaf for tree in self.trees for leaf in tree.leaves if isinstance(leaf, TensorValue)]
        if not self.tensors or not all(self.trees[at].are_tensors() for at in self.chosen):
            raise GraphBreak(NOT_DIFFERENTIATED, "a derivative is requested of an object that is no tensor")

    def examples(self, tr: Tracer) -> list[TensorValue]:
        """Return the tensors without autograd history."""
        detached = [tr.call_torch("detach", (one,), {}) for one in self.tensors]
        return [one for one in detached if isinstance(one, TensorValue)]

    def traced(self, tr: Tracer, kind: Kind, function: Value, examples: Sequence[Value], kwargs: Kwargs) -> Value:
        """Return the result of the function for the examples; code that reads a tensor's history breaks."""
        level = Level(kind, tr.facts.body.level)
        with _differentiated(tr):
            return traced_body(tr, level, function, lambda: self._with(tr, examples), kwargs)

    def _with(self, tr: Tracer, examples: Sequence[Value]) -> list[Value]:
        left = iter(examples)
        return [
            tree.again(tr, [next(left) if isinstance(one, TensorValue) else one for one in tree.leaves])
            for tree in self.trees
        ]

    def positions(self) -> list[int]:
        """Return the indices, among all tensors, of those that are differentiated."""
        return [position for at in self.chosen for position in self._positions(at)]

    def _positions(self, argument: int) -> range:
        counts = [sum(isinstance(one, TensorValue) for one in tree.leaves) for tree in self.trees]
        before = sum(counts[:argument])
        return range(before, before + counts[argument])

    def differentiated(self, tr: Tracer) -> Value:
        """Return the arguments to differentiate, as torch gives their gradients: one argument, or a tuple."""
        chosen = [self.given[at] for at in self.chosen]
        return chosen[0] if self.is_one else TupleValue(chosen)


def _chosen(argnums: Value, count: int) -> list[int]:
    """Return the arguments to differentiate, which must match torch's choice."""
    given = argnums.as_plain()
    numbers = given if isinstance(given, tuple) else (given,)
    if not all(type(at) is int for at in numbers):
        raise GraphBreak(NOT_DIFFERENTIATED, f"argnums is {given!r}")
    positions = [at + count if at < 0 else at for at in numbers]
    if not positions or len({*positions}) != len(positions) or not all(0 <= at < count for at in positions):
        raise GraphBreak(NOT_DIFFERENTIATED, f"argnums is {given} for {count} arguments")
    return positions


@contextmanager
def _differentiated(tr: Tracer) -> Iterator[None]:
    """Context manager for tracing a function that is differentiated: gradients are on inside, as torch has it."""
    tr.facts.body.differentiated += 1
    try:
        with ambient.preserved() as state:
            ambient.write(replace(state, grad=True))
            yield
    finally:
        tr.facts.body.differentiated -= 1


def split_result(tr: Tracer, result: Value, has_aux: bool) -> tuple[Value, Tree]:
    """Return the differentiated result of a function, and its auxiliary results, which must be tensors."""
    parts: list[Value] = [result, TupleValue([])]
    if has_aux and (not issubclass(result.python_type(), tuple) or len(parts := result.unpack(tr)) != 2):
        raise GraphBreak(NOT_DIFFERENTIATED, f"it gives {result.describe()}, with has_aux")
    others = tree_of(tr, parts[1])
    if not others.are_tensors():
        raise GraphBreak(NOT_DIFFERENTIATED, "it gives other things than tensors")
    return parts[0], others
