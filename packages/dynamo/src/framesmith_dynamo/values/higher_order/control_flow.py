"""Control flow of torch in a trace: bodies are traced as graphs of their own, and become a call in the graph.

Each body is traced once, on examples of its arguments, and what it captures becomes an operand of the call (see
`framesmith_aten.graphs.control_flow`). Where torch rejects a call the graph breaks, and torch's own function raises.

Note [Numbers of bodies]: bodies are functions of tensors to tensors. A number that a loop carries, or a function gives,
is a tensor of one element there, and read where the program has the number: in the body for its arguments, behind the
call for its results. Each run of a body has numbers of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from framesmith_aten.fakes.symbols import attach_shape_env
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
from framesmith_dynamo.values.errors import refuse
from framesmith_dynamo.values.higher_order.derivatives.arguments import Tree, tree_of
from framesmith_dynamo.values.higher_order.subgraphs import in_body, recorded_call
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_dynamo.values.transform_levels import Kind
from framesmith_guards.contexts import ambient

CONTROL_FLOW = register_break(
    "control-flow-refused",
    what="torch.cond, while_loop, scan, associative_scan or map is called in a way that torch rejects, or that a graph "
    "does not hold",
    why="torch's own function raises the error, or runs the call",
    hint="see the error that follows; where there is none, give tensors to the function and return new tensors "
    "of the same type from it",
)


#: Types of numbers that bodies give, and that loops carry, as tensors of one element: see Note [Numbers of bodies].
NUMBERS: Final = {int: torch.int64, bool: torch.bool}
#: The arguments of a loop.
LOOP: Final = ("cond_fn", "body_fn", "carried_inputs")


@dataclass(frozen=True)
class Body:
    """A body as a subgraph, and the structure of what it returns; of its leaves None are no results of the subgraph.

    `kinds`: the types of those results that are numbers in the program, None for tensors.
    """

    graph: Subgraph
    returned: Tree
    kinds: list[type | None]

    @property
    def results(self) -> list[TensorValue]:
        return [one for one in self.returned.leaves if isinstance(one, TensorValue)]

    def again(self, tr: Tracer, results: Sequence[Value]) -> Value:
        """Return the structure with other results, of which those are read that are numbers in the program."""
        left = iter(as_numbers(tr, results, self.kinds))
        leaves = [next(left) if isinstance(one, TensorValue) else one for one in self.returned.leaves]
        return self.returned.again(tr, leaves)


def refuse_transforms(tr: Tracer, allowed: Sequence[Kind] = ()) -> None:
    """Break in the body of a function transform, but those `allowed`."""
    level = tr.facts.body.level
    if level and any(one.kind not in allowed for one in level.outwards()):
        raise GraphBreak(CONTROL_FLOW, "a function transform of torch that does not allow it is active")


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


def number_type_of(value: Value) -> type | None:
    """Return the type of a number that a body may give; None for other values."""
    kind = None if isinstance(value, TensorValue) else value.python_type()
    return kind if kind in NUMBERS else None


def as_tensor(tr: Tracer, value: Value) -> Value:
    """Return a number as a tensor; other values as they are."""
    kind = number_type_of(value)
    if kind is None:
        return value
    return tr.call_torch(torch.scalar_tensor, (value,), {"dtype": tr.constant(NUMBERS[kind])})


def as_numbers(tr: Tracer, values: Sequence[Value], kinds: Sequence[type | None]) -> list[Value]:
    """Return the numbers that tensors have in the place of those with a kind."""
    if any(kinds):
        attach_shape_env(tr.builder.fake_mode)
    pairs = zip(values, kinds, strict=True)
    return [one if kind is None else tr.call_torch("item", (one,), {}) for one, kind in pairs]


def traced(
    tr: Tracer,
    function: Value,
    arguments: Callable[[], Sequence[Value]],
    examples: Sequence[TensorValue],
    numbers: Sequence[type] = (),
) -> Body:
    """Trace a function of arguments that hold the examples. Its results are tensors or None, or of types of `numbers`.

    The arguments are made in the body: there numbers are read off the examples.
    """
    builder, nodes = tr.builder, [one.as_proxy() for one in examples]
    last, before = last_node(builder), ambient.read()
    with in_body(tr, "a function under control flow"):
        returned = tree_of(tr, tr.call(function, arguments(), {}))
        given = [number_type_of(one) for one in returned.leaves]
        kinds = [kind if kind in numbers else None for kind in given]
        leaves = [one if kind is None else as_tensor(tr, one) for one, kind in zip(returned.leaves, kinds, strict=True)]
        returned = replace(returned, leaves=leaves)
    if not all(isinstance(one, TensorValue) or one.is_none() for one in returned.leaves):
        raise GraphBreak(CONTROL_FLOW, "a function returns something other than tensors")
    results = tensors([one for one in returned.leaves if not one.is_none()], "results of a function")
    restored = ambient.read() == before
    proxies = [one.as_proxy() for one in results]
    kinds = [kind for kind, one in zip(kinds, returned.leaves, strict=True) if not one.is_none()]
    return Body(extract_subgraph(builder, last, nodes, proxies, modes=restored, numbers=True), returned, kinds)


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
    refuse_transforms(tr, ("vmap",))
    if not equal(condition.fake.numel(), 1):
        raise GraphBreak(CONTROL_FLOW, "the condition has more than one element, or none")
    tensors(tree_of(tr, TupleValue([*operands])).leaves, "operands")
    when_true, when_false = (traced(tr, branch, lambda: operands, (), (int,)) for branch in branches)
    for body in (when_true, when_false):
        refuse_aliases(body, ())
    refuse_other_types(when_true.results, when_false.results)
    _refuse_other_numbers(when_true.kinds, when_false.kinds)
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
    given = named(tr, unstable.while_loop, args, kwargs, LOOP, 3)
    return _loop(tr, control_flow.while_loop, *(given[name] for name in LOOP))


@handles(unstable.while_loop_stack_output)
def while_loop_stack_output(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """torch's operator of tensors alone, `while_loop_stack_output(cond_fn, body_fn, carried_inputs, captured)`."""
    given = named(tr, unstable.while_loop_stack_output, args, kwargs, (*LOOP, "additional_inputs"), 4)
    carried = given["carried_inputs"].unpack(tr)
    if given["additional_inputs"].unpack(tr) or not all(isinstance(one, TensorValue) for one in carried):
        raise GraphBreak(CONTROL_FLOW, "a loop that gives stacks carries more than tensors, or is given captured ones")
    made = _loop(tr, control_flow.while_loop_stack_output, *(given[name] for name in LOOP))
    if any(one.fake.requires_grad for one in tensors(made.unpack(tr), "stacks")):
        raise GraphBreak(CONTROL_FLOW, "stacks of a loop have no gradients")
    return made


def _loop(tr: Tracer, target: Callable[..., Any], condition: Value, function: Value, begins: Value) -> Value:
    """Record a loop."""
    refuse_transforms(tr)
    tree = tree_of(tr, begins)
    kinds = [number_type_of(one) for one in tree.leaves]
    carried = tensors([as_tensor(tr, one) for one in tree.leaves], "carried values")
    if not carried:
        raise GraphBreak(CONTROL_FLOW, "nothing is carried")
    before = copies(tr, carried)

    def arguments() -> list[Value]:
        return tree.again(tr, as_numbers(tr, before, kinds)).unpack(tr)

    holds = traced(tr, condition, arguments, before, (bool,))
    _refuse_condition(holds)
    body = traced(tr, function, arguments, before, tuple(NUMBERS))
    for one in (holds, body):
        refuse_aliases(one, before)
    refuse_other_types(carried, body.results)
    _refuse_other_numbers(kinds, body.kinds)
    _refuse_gradients(kinds, [*carried, *body.results])
    if len(body.returned.leaves) != len(carried):
        raise GraphBreak(CONTROL_FLOW, "a function returns None")
    settings = ((len(carried), len(holds.graph.captured)),)
    return body.again(tr, recorded_call(tr, target, (holds.graph, body.graph), settings, carried))


def _refuse_other_numbers(before: Sequence[type | None], after: Sequence[type | None]) -> None:
    if [*before] != [*after]:
        raise GraphBreak(CONTROL_FLOW, "a function gives numbers for tensors, or the other way round")


def _refuse_gradients(kinds: Sequence[type | None], values: Sequence[TensorValue]) -> None:
    """Break where a loop carries numbers, and gradients are asked for: torch refuses it."""
    if any(kinds) and torch.is_grad_enabled() and any(one.fake.requires_grad for one in values):
        raise GraphBreak(CONTROL_FLOW, "a loop carries numbers, with gradients")


def _refuse_condition(holds: Body) -> None:
    """Break where the condition of a loop is no tensor of one bool."""
    [*results] = holds.results
    if len(holds.returned.leaves) != 1 or not results or results[0].fake.dim() or results[0].fake.dtype != torch.bool:
        raise GraphBreak(CONTROL_FLOW, "the condition of a loop is no tensor of one bool")


@handles(unstable.invoke_quant_packed)
def invoke_quant_packed(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`invoke_quant_packed(function, *operands)`: a call, which other compilers hold as one operator."""
    if not args or set(kwargs) - {"scheme", "quant_options"}:
        refuse(tr, unstable.invoke_quant_packed, args, kwargs)
    return tr.call(args[0], args[1:], {})
