"""Control flow as nodes of a graph: calls whose first arguments are graphs of their own.

The targets are the functions of this module, in torch-level graphs with torch-level bodies and in ATen graphs with
functional ATen bodies. A body runs as often as a condition on data, or a length, demands. Called, they compute what
they stand for, one step after the other, and autograd records the steps. See docs/design/graphs/0038-control-flow.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from framesmith_aten.graphs.transforms import function_of

Body = Callable[..., tuple[Any, ...]]


def cond(
    when_true: Body, when_false: Body, counts: tuple[int, int], condition: Any, *operands: Any
) -> tuple[torch.Tensor, ...]:
    """Return the results of one of two bodies, chosen by a tensor of one element (or a number).

    `counts`: of the arguments of both bodies, and of the values that `when_true` captures. `operands` are these
    arguments, these values, and those that `when_false` captures.
    """
    shared, captured = counts
    arguments, rest = operands[:shared], operands[shared:]
    if condition:
        return function_of(when_true)(*arguments, *rest[:captured])
    return function_of(when_false)(*arguments, *rest[captured:])


def while_loop(holds: Body, body: Body, counts: tuple[int, int], *operands: Any) -> tuple[torch.Tensor, ...]:
    """Return the values that a loop carries when `holds`, whose result is one tensor of one element, is false.

    `counts`: of the carried values, and of the values that `holds` captures. `operands` are the first carried values,
    these values, and those that `body` captures. Without an iteration the results are copies.
    """
    return looped(holds, body, counts, operands)[0]


def while_loop_with_history(
    holds: Body, body: Body, counts: tuple[int, int], *operands: Any
) -> tuple[torch.Tensor, ...]:
    """Return what `while_loop` does, then what each iteration began with: stacks of the carried values."""
    carried, history = looped(holds, body, counts, operands)
    if not history:
        return (*carried, *(one.new_empty((0, *one.shape)) for one in carried))
    return (*carried, *map(torch.stack, zip(*history, strict=True)))


def looped(
    holds: Body, body: Body, counts: tuple[int, int], operands: Sequence[Any]
) -> tuple[tuple[torch.Tensor, ...], list[tuple[torch.Tensor, ...]]]:
    """Return the last carried values of a loop, and those that each iteration began with."""
    carries, captured = counts
    carried, rest = tuple(operands[:carries]), operands[carries:]
    condition, step = function_of(holds), function_of(body)
    history = []
    while condition(*carried, *rest[:captured])[0]:
        history.append(carried)
        carried = step(*carried, *rest[captured:])
    return carried if history else tuple(one.clone() for one in carried), history


def scan(body: Body, counts: tuple[int, int], reverse: bool, *operands: Any) -> tuple[torch.Tensor, ...]:
    """Return the last carried values of a loop over slices, and the stacks of what each step gives beside them.

    `counts`: of the carried values, and of the tensors that are sliced in dimension 0. `operands` are the first carried
    values, these tensors, and the values that `body` captures. In `reverse` the last slice comes first. A step's
    results lie in the stacks where its slices do.
    """
    carries, sliced = counts
    carried, xs, captured = operands[:carries], operands[carries:][:sliced], operands[carries + sliced :]
    step = function_of(body)
    given: list[tuple[torch.Tensor, ...]] = []
    for slices in _slices(xs, reverse):
        results = step(*carried, *slices, *captured)
        carried = results[:carries]
        given.append(results[carries:])
    return (*carried, *(torch.stack(one) for one in zip(*_in_order(given, reverse), strict=True)))


def associative_scan(body: Body, count: int, reverse: bool, *operands: Any) -> tuple[torch.Tensor, ...]:
    """Return the stacks of what an associative body makes of the slices up to each one, in dimension 0.

    `count`: of the tensors that are sliced. `operands` are these, and the values that `body` captures: it joins two
    groups of `count` slices. In `reverse` the last slice comes first.
    """
    xs, captured = operands[:count], operands[count:]
    join = function_of(body)
    found: list[tuple[torch.Tensor, ...]] = []
    for slices in _slices(xs, reverse):
        found.append(join(*found[-1], *slices, *captured) if found else slices)
    return tuple(torch.stack(one) for one in zip(*_in_order(found, reverse), strict=True))


#: The targets of such nodes, and how many of the first arguments are bodies.
BODIES: dict[Callable[..., Any], int] = {
    cond: 2,
    while_loop: 2,
    while_loop_with_history: 2,
    scan: 1,
    associative_scan: 1,
}


def _slices(xs: Sequence[torch.Tensor], reverse: bool) -> list[tuple[torch.Tensor, ...]]:
    return _in_order(list(zip(*(x.unbind() for x in xs), strict=True)), reverse)


def _in_order(steps: list[tuple[torch.Tensor, ...]], reverse: bool) -> list[tuple[torch.Tensor, ...]]:
    return steps[::-1] if reverse else steps
