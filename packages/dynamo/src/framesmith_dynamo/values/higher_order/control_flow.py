"""Control flow of torch in a trace: bodies are traced as graphs of their own, and become a call in the graph.

Each body is traced once, on examples of its arguments, and what it captures becomes an operand of the call (see
`framesmith_aten.graphs.control_flow`). Where torch rejects a call the graph breaks, and torch's own function raises.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from framesmith_aten.graphs import control_flow
from framesmith_aten.layouts import storage_id
from framesmith_aten.meta import EXAMPLE
from framesmith_aten.symbolic import all_equal, equal
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.graph.subgraphs import Subgraph, extract_subgraph, last_node
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import handles, named
from framesmith_dynamo.values.containers import TupleValue
from framesmith_dynamo.values.higher_order.derivatives.arguments import Tree, tree_of
from framesmith_dynamo.values.higher_order.subgraphs import in_body, recorded_call
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_guards.contexts import ambient

CONTROL_FLOW = register_break(
    "control-flow-refused",
    what="torch.cond, while_loop, scan, associative_scan or map is called in a way that torch rejects, or that a graph "
    "does not hold",
    why="torch's own function raises the error, or runs the call",
    hint="see the error that follows; where there is none, give tensors to the function and return new tensors "
    "of the same type from it",
)


@dataclass(frozen=True)
class Body:
    """A body as a subgraph, and the structure of what it returns; of its leaves None are no results of the subgraph."""

    graph: Subgraph
    returned: Tree

    @property
    def results(self) -> list[TensorValue]:
        return [one for one in self.returned.leaves if isinstance(one, TensorValue)]

    def again(self, tr: Tracer, results: Sequence[Value]) -> Value:
        """Return the structure with other results."""
        left = iter(results)
        leaves = [next(left) if isinstance(one, TensorValue) else one for one in self.returned.leaves]
        return self.returned.again(tr, leaves)


def refuse_transforms(tr: Tracer) -> None:
    """Break in the body of a function transform."""
    if tr.facts.body.level:
        raise GraphBreak(CONTROL_FLOW, "a function transform of torch is active")


def tensors(values: Sequence[Value], what: str) -> list[TensorValue]:
    """Return the values, each of which has to be a dense tensor."""
    found = [one for one in values if isinstance(one, TensorValue) and one.fake.layout is torch.strided]
    if len(found) != len(values):
        raise GraphBreak(CONTROL_FLOW, f"{what} are not dense tensors alone")
    return found


def copies(tr: Tracer, values: Sequence[TensorValue]) -> list[TensorValue]:
    """Return examples of tensors, each with memory of its own. Nothing uses them when the bodies are extracted."""
    found = tensors([tr.call_torch("clone", (one,), {}) for one in values], "examples")
    for one in found:
        fake: Any = one.fake
        fake.constant = None  # later steps have other values
    return found


def traced(tr: Tracer, function: Value, arguments: Sequence[Value], examples: Sequence[TensorValue]) -> Body:
    """Trace a function of arguments that hold the examples. Its results are tensors or None."""
    builder, nodes = tr.builder, [one.as_proxy() for one in examples]
    last, before = last_node(builder), ambient.read()
    with in_body(tr, "a function under control flow"):
        returned = tree_of(tr, tr.call(function, arguments, {}))
    if not all(isinstance(one, TensorValue) or one.is_none() for one in returned.leaves):
        raise GraphBreak(CONTROL_FLOW, "a function returns something other than tensors")
    results = tensors([one for one in returned.leaves if not one.is_none()], "results of a function")
    restored = ambient.read() == before
    return Body(extract_subgraph(builder, last, nodes, [one.as_proxy() for one in results], modes=restored), returned)


def refuse_aliases(body: Body, examples: Sequence[TensorValue]) -> None:
    """Break where results share memory with each other or with what the function was given, as torch does."""
    captured = [EXAMPLE.of(one) for one in body.graph.captured]
    given = [*(one.fake for one in examples), *(one for one in captured if isinstance(one, torch.Tensor))]
    known = {storage_id(one) for one in given if one.layout is torch.strided}
    for one in body.results:
        if storage_id(one.fake) in known:
            raise GraphBreak(CONTROL_FLOW, "a result shares memory with another one, or with an operand")
        known.add(storage_id(one.fake))


def refuse_other_types(before: Sequence[TensorValue], after: Sequence[TensorValue], strides: bool = True) -> None:
    """Break where tensors do not match pairwise in shape, dtype, device and strides."""
    if len(before) != len(after) or not all(map(_match, before, after, [strides] * len(before))):
        raise GraphBreak(CONTROL_FLOW, "a function's results differ from what they replace in number, shape or type")


def _match(before: TensorValue, after: TensorValue, strides: bool) -> bool:
    one, other = before.fake, after.fake
    if (one.dtype, one.device, one.dim()) != (other.dtype, other.device, other.dim()):
        return False
    if one.is_conj() or one.is_neg() or other.is_conj() or other.is_neg() or not all_equal(one.shape, other.shape):
        return False
    return not strides or all_equal(one.stride(), other.stride())


@handles(torch.cond)
def cond(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`torch.cond(pred, true_fn, false_fn, operands)`."""
    given = named(tr, torch.cond, args, kwargs, ("pred", "true_fn", "false_fn", "operands"), 3)
    condition, operands = given["pred"], given["operands"].unpack(tr) if "operands" in given else []
    if isinstance(condition, TensorValue):
        return _cond_of_data(tr, condition, (given["true_fn"], given["false_fn"]), operands)
    if not issubclass(condition.python_type(), (bool, int, float)):
        raise GraphBreak(CONTROL_FLOW, f"the condition is {condition.describe()}")
    return tr.call(given["true_fn"] if condition.bool_(tr) else given["false_fn"], operands, {})


def _cond_of_data(tr: Tracer, condition: TensorValue, branches: Sequence[Value], operands: Sequence[Value]) -> Value:
    """Record both branches. Their arguments are captured like all else."""
    refuse_transforms(tr)
    if not equal(condition.fake.numel(), 1):
        raise GraphBreak(CONTROL_FLOW, "the condition has more than one element, or none")
    tensors(tree_of(tr, TupleValue([*operands])).leaves, "operands")
    when_true, when_false = (traced(tr, branch, operands, ()) for branch in branches)
    for body in (when_true, when_false):
        refuse_aliases(body, ())
    refuse_other_types(when_true.results, when_false.results)
    if not tr.call(tr.constant(operator.eq), (when_true.returned.spec, when_false.returned.spec), {}).bool_(tr):
        raise GraphBreak(CONTROL_FLOW, "branches return other structures")
    if not when_true.results or len(when_true.results) != len(when_true.returned.leaves):
        raise GraphBreak(CONTROL_FLOW, "branches return nothing, or None")
    settings = ((0, len(when_true.graph.captured)),)
    made = recorded_call(tr, control_flow.cond, (when_true.graph, when_false.graph), settings, (condition,))
    return when_true.again(tr, made)


@handles(unstable.while_loop)
def while_loop(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`while_loop(cond_fn, body_fn, carried_inputs)`."""
    refuse_transforms(tr)
    given = named(tr, unstable.while_loop, args, kwargs, ("cond_fn", "body_fn", "carried_inputs"), 3)
    tree = tree_of(tr, given["carried_inputs"])
    carried = tensors(tree.leaves, "carried values")
    if not carried:
        raise GraphBreak(CONTROL_FLOW, "nothing is carried")
    before = copies(tr, carried)
    arguments = tree.again(tr, before)
    holds = traced(tr, given["cond_fn"], arguments.unpack(tr), before)
    _refuse_condition(holds)
    body = traced(tr, given["body_fn"], arguments.unpack(tr), before)
    for one in (holds, body):
        refuse_aliases(one, before)
    refuse_other_types(carried, body.results)
    if len(body.returned.leaves) != len(carried):
        raise GraphBreak(CONTROL_FLOW, "a function returns None")
    settings = ((len(carried), len(holds.graph.captured)),)
    return body.again(tr, recorded_call(tr, control_flow.while_loop, (holds.graph, body.graph), settings, carried))


def _refuse_condition(holds: Body) -> None:
    """Break where the condition of a loop is no tensor of one bool."""
    [*results] = holds.results
    if len(holds.returned.leaves) != 1 or not results or results[0].fake.dim() or results[0].fake.dtype != torch.bool:
        raise GraphBreak(CONTROL_FLOW, "the condition of a loop is no tensor of one bool")
