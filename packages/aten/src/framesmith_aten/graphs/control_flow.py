"""Control flow as nodes of a graph: calls whose first arguments are graphs of their own.

The targets are the functions of this module, in torch-level graphs with torch-level bodies and in ATen graphs with
functional ATen bodies. A body runs as often as a condition on data, or a length, demands. Called, they compute what
they stand for, one step after the other, and autograd records the steps. See docs/design/graphs/0038-control-flow.md.

Note [One step on fakes]: of fake tensors one step is run, for the layouts of the results: a loop may be long, and how
often it runs unknown. The fake results have the history that torch's own operators give theirs, a node that leads to
all operands; but those of `associative_scan`, which torch makes of other operators, require gradients where their
elements do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.fakes.symbols import unbacked_size
from framesmith_aten.graphs import batched
from framesmith_aten.graphs.transforms import function_of
from framesmith_aten.nested import tensors_in
from framesmith_aten.torch_adapter import unstable
from framesmith_guards.torch_adapter import FakeTensor

Body = Callable[..., tuple[Any, ...]]


def cond(
    when_true: Body, when_false: Body, counts: tuple[int, int], condition: Any, *operands: Any
) -> tuple[torch.Tensor, ...]:
    """Return the results of one of two bodies, chosen by a tensor of one element (or a number).

    `counts`: of the arguments of both bodies, and of the values that `when_true` captures. `operands` are these
    arguments, these values, and those that `when_false` captures.
    """
    if batched.is_batched():
        return batched.cond(
            lambda bodies, below: cond(*bodies, counts, *below), (when_true, when_false), counts, condition, operands
        )
    shared, captured = counts

    def branch(taken: bool, operands: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        arguments, rest = operands[:shared], operands[shared:]
        run, own = (when_true, rest[:captured]) if taken else (when_false, rest[captured:])
        return function_of(run)(*arguments, *own)

    if are_fake((condition, *operands)):
        results, _ = branch(True, operands), branch(False, operands)
        return _with_history([*map(_like, results)], (condition, *operands))
    return branch(bool(condition), _joined(operands))


def while_loop(holds: Body, body: Body, counts: tuple[int, int], *operands: Any) -> tuple[torch.Tensor, ...]:
    """Return the values that a loop carries when `holds`, whose result is one tensor of one element, is false.

    `counts`: of the carried values, and of the values that `holds` captures. `operands` are the first carried values,
    these values, and those that `body` captures. Without an iteration the results are copies.
    """
    if are_fake(operands):
        carries, captured = counts
        carried, rest = operands[:carries], operands[carries:]
        function_of(holds)(*carried, *rest[:captured])
        return _with_history([*map(_like, function_of(body)(*carried, *rest[captured:]))], operands)
    operands = _joined(operands)
    iterations, last = 0, tuple(operands[: counts[0]])
    for iterations, last in enumerate(_begun(holds, body, counts, operands)):  # noqa: B007
        pass
    return last if iterations else tuple([one.clone() for one in last])


def while_loop_stack_output(
    holds: Body, body: Body, counts: tuple[int, int], *operands: Any
) -> tuple[torch.Tensor, ...]:
    """Return stacks of the values that a loop carries after each iteration; without one, of those it began with.

    The arguments are those of `while_loop`.
    """
    carries, captured = counts
    if are_fake(operands):
        carried, rest = operands[:carries], operands[carries:]
        function_of(holds)(*carried, *rest[:captured])
        found = function_of(body)(*carried, *rest[captured:])
        return _with_history([*stacks_of_iterations(found)], operands)
    steps = [*_begun(holds, body, counts, operands)]
    return tuple(torch.stack(one) for one in zip(*(steps[1:] or steps), strict=True))


def stacks_of_iterations(results: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield fakes of stacks of a step's fake results, as many as a call has iterations."""
    mode: Any = next(one for one in results if isinstance(one, FakeTensor)).fake_mode
    length = unbacked_size(mode, least=1)
    with mode:
        for one in results:
            yield _stack_of(one, length)


def while_loop_gradients(
    holds: Body, body: Body, step: Body, counts: tuple[int, int, int, int], *operands: Any
) -> tuple[torch.Tensor, ...]:
    """Return what `step`, the backward pass of an iteration, carries from the last iteration to before the first.

    `counts`: of the loop's carried values, of the values that `holds` and `body` capture, of those that `step` carries.
    `operands` are these in order (carried values before the loop and after it), and the values that `step` captures: it
    takes the values that it carries, those that its iteration began with, and these. The loop runs again, since nothing
    but its iterations says how many there are. Without one, torch's gradient is that of one iteration.
    """
    carries, by_holds, by_body, moving = counts
    of_loop, rest = operands[: carries + by_holds + by_body], operands[carries + by_holds + by_body :]
    came, captured = rest[:moving], rest[moving:]
    run = function_of(step)
    if are_fake(operands):
        return tuple(map(_like, run(*came, *of_loop[:carries], *captured)))
    found = [*_begun(holds, body, (carries, by_holds), of_loop)]
    for before in reversed(found[:-1] or found):
        came = run(*came, *before, *captured)
    return came


def _begun(
    holds: Body, body: Body, counts: tuple[int, int], operands: Sequence[Any]
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the values that each iteration of a loop begins with, and last those it ends with."""
    carries, captured = counts
    carried, rest = tuple(operands[:carries]), operands[carries:]
    condition, step = function_of(holds), function_of(body)
    yield carried
    while condition(*carried, *rest[:captured])[0]:
        carried = tuple(step(*carried, *rest[captured:]))
        yield carried


def scan(body: Body, counts: tuple[int, int], reverse: bool, *operands: Any) -> tuple[torch.Tensor, ...]:
    """Return the last carried values of a loop over slices, and the stacks of what each step gives beside them.

    `counts`: of the carried values, and of the tensors that are sliced in dimension 0. `operands` are the first carried
    values, these tensors, and the values that `body` captures. In `reverse` the last slice comes first. A step's
    results lie in the stacks where its slices do.
    """
    if batched.is_batched():
        return batched.scan(lambda bodies, below: scan(*bodies, counts, reverse, *below), body, counts, operands)
    carries, sliced = counts
    step = function_of(body)
    if are_fake(operands):
        carried, xs, captured = operands[:carries], operands[carries:][:sliced], operands[carries + sliced :]
        results = step(*carried, *(x[0] for x in xs), *captured)
        given_once = [_stack_of(one, xs[0].shape[0]) for one in results[carries:]]
        return _with_history([*map(_like, results[:carries]), *given_once], operands)
    operands = _joined(operands)
    carried, xs, captured = operands[:carries], operands[carries:][:sliced], operands[carries + sliced :]
    given: list[tuple[torch.Tensor, ...]] = []
    for slices in _slices(xs, reverse):
        results = step(*carried, *slices, *captured)
        carried = results[:carries]
        given.append(results[carries:])
    return (*carried, *(torch.stack(one) for one in zip(*_in_order(given, reverse), strict=True)))


def associative_scan(body: Body, count: int, reverse: bool, *operands: Any) -> tuple[torch.Tensor, ...]:
    """Return the stacks of what an associative body makes of the slices up to each one, in dimension 0.

    `count`: of the tensors that are sliced. `operands` are these, and the values that `body` captures: it joins two
    groups of `count` slices, of the results, which are contiguous, and of the tensors. In `reverse` the last slice
    comes first.
    """
    xs, captured = operands[:count], operands[count:]
    join = function_of(body)
    if are_fake(operands):
        return _joined_fakes(join, xs, captured)
    found: list[tuple[torch.Tensor, ...]] = []
    for slices in _slices(xs, reverse):
        first = tuple([one.contiguous() for one in slices])
        found.append(join(*found[-1], *slices, *captured) if found else first)
    return tuple(torch.stack(one) for one in zip(*_in_order(found, reverse), strict=True))


def invoke_subgraph(body: Body, *operands: Any) -> tuple[torch.Tensor, ...]:
    """Return the results of a body that several nodes call."""
    return function_of(body)(*operands)


#: The targets of such nodes, and how many of the first arguments are bodies.
BODIES: dict[Any, int] = {
    cond: 2,
    while_loop: 2,
    while_loop_stack_output: 2,
    while_loop_gradients: 3,
    scan: 1,
    associative_scan: 1,
    invoke_subgraph: 1,
}


#: Those of which fakes show the results alone, which no operator has computed: see Note [One step on fakes].
SHOWN_BY_FAKES = frozenset(BODIES) - {invoke_subgraph}


def bodies_of(node: fx.Node) -> list[fx.GraphModule]:
    """Return the bodies that a call in an ATen graph runs; none for other nodes."""
    return [held.meta["val"] for held in node.args[: BODIES.get(node.target, 0)] if isinstance(held, fx.Node)]


def calls_of(graph: fx.Graph) -> Iterator[Any]:
    """Yield the operators that an ATen graph calls, and those of the bodies in it."""
    for node in graph.nodes:
        if node.op == "call_function":
            yield node.target
        for body in bodies_of(node):
            yield from calls_of(body.graph)


def is_body(node: fx.Node) -> bool:
    """Whether a node holds a body of the calls that use it."""
    return node.op == "get_attr" and any(node in user.args[: BODIES.get(user.target, 0)] for user in node.users)


def are_fake(values: Any) -> bool:
    """Whether any of the tensors among values is fake.

    Raises TraceUnsupported under a mode that records operators: it would record results that nothing has computed.
    """
    if not any(isinstance(one, FakeTensor) for one in tensors_in(values)):
        return False
    if any(getattr(mode, "records_graph", False) for mode in unstable.get_current_dispatch_mode_stack()):
        raise TraceUnsupported("control-flow", "control flow in a traced function", "its steps are not operators")
    return True


@dataclass(frozen=True)
class TensorLayout:
    """The metadata of a result that is a new strided tensor."""

    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    @classmethod
    def of(cls, fake: torch.Tensor) -> TensorLayout:
        return cls(tuple(fake.shape), fake.stride(), fake.dtype, fake.device, fake.requires_grad)

    def new_tensor(self) -> torch.Tensor:
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)


class _Joined(torch.autograd.Function):
    """The operands of a call, which all have a gradient where one has: zeros for those that no step reaches."""

    @staticmethod
    def forward(ctx: Any, *operands: Any) -> Any:
        return tuple([one.view_as(one) if isinstance(one, torch.Tensor) else one for one in operands])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads


def _joined(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the operands as a call takes them that autograd records as one node."""
    tensors = [one for one in operands if isinstance(one, torch.Tensor)]
    if not (torch.is_grad_enabled() and any(one.requires_grad for one in tensors)):
        return operands
    joined: tuple[Any, ...] = _Joined.apply(*operands)  # type: ignore[no-untyped-call]
    return joined


class _OfSteps(torch.autograd.Function):
    """The history of fake results. Gradients through it are fakes that nothing has computed."""

    @staticmethod
    def forward(ctx: Any, results: Sequence[torch.Tensor], *operands: Any) -> Any:
        ctx.layouts = [TensorLayout.of(one) if isinstance(one, torch.Tensor) else None for one in operands]
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, *(None if one is None else one.new_tensor() for one in ctx.layouts)


def _with_history(results: Sequence[torch.Tensor], operands: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Return new fake results whose history leads to all operands, where one of these requires a gradient."""
    made: tuple[torch.Tensor, ...] = _OfSteps.apply(results, *operands)  # type: ignore[no-untyped-call]
    return made


def results_again(results: Sequence[TensorLayout], operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return new fake results of these layouts; the history of those with gradients leads to all operands."""
    made = [one.new_tensor() for one in results]
    wanting = [fake for fake, one in zip(made, results, strict=True) if one.requires_grad]
    given = iter(_with_history(wanting, operands) if wanting else ())
    return [next(given) if one.requires_grad else fake for fake, one in zip(made, results, strict=True)]


def _joined_fakes(join: Body, xs: Sequence[torch.Tensor], captured: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Return the results of an associative scan of fakes: those require gradients that do after some step."""
    slices = [x[0] for x in xs]
    found = slices
    while True:
        joined = join(*found, *slices, *captured)
        wanting = [before.requires_grad or after.requires_grad for before, after in zip(found, joined, strict=True)]
        if wanting == [one.requires_grad for one in found]:
            break
        found = [one if one.requires_grad else other for one, other in zip(found, joined, strict=True)]
    stacks = [_stack_of(one, xs[0].shape[0]) for one in joined]
    sources = [value for value in (*xs, *captured) if isinstance(value, torch.Tensor) and value.requires_grad]
    made = _with_history(stacks, sources)
    return tuple(one if wants else _like(one) for one, wants in zip(made, wanting, strict=True))


def _like(result: torch.Tensor) -> torch.Tensor:
    """Return a new tensor with the layout of a step's result."""
    return TensorLayout.of(result).new_tensor()


def _stack_of(result: torch.Tensor, length: Any) -> torch.Tensor:
    return torch.empty((length, *result.shape), dtype=result.dtype, device=result.device)


def _slices(xs: Sequence[torch.Tensor], reverse: bool) -> list[tuple[torch.Tensor, ...]]:
    return _in_order(list(zip(*(x.unbind() for x in xs), strict=True)), reverse)


def _in_order(steps: list[tuple[torch.Tensor, ...]], reverse: bool) -> list[tuple[torch.Tensor, ...]]:
    return steps[::-1] if reverse else steps
