"""Control flow under `torch.vmap`: the same call below it, on whole batches, with bodies under a `vmap` of their own.

A `cond` whose condition differs between examples runs both branches. The transforms around may be `vmap` alone: torch
refuses control flow under others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.graphs.transforms import function_of
from framesmith_aten.torch_adapter import unstable

Tensors = tuple[torch.Tensor, ...]
#: A call of control flow with other bodies and operands.
Call = Callable[[Sequence[Any], Sequence[Any]], Tensors]


@dataclass(frozen=True)
class Mapped:
    """A body under `torch.vmap`, whose results are batches in dimension 0. `in_dims`: of its operands."""

    body: Any
    in_dims: tuple[int | None, ...]
    size: Any
    randomness: str

    def __call__(self, *operands: Any) -> Tensors:
        run = function_of(self.body)
        if all(dim is None for dim in self.in_dims):
            return tuple(_in_front(one, None, self.size) for one in run(*operands))
        found: Tensors = torch.vmap(lambda *given: tuple(run(*given)), self.in_dims, 0, self.randomness)(*operands)
        return found

    def run_in(self, tracer: Any, args: Sequence[Any]) -> list[Any]:
        """Run it above another tracer."""
        return [*self(*args)]


def is_batched() -> bool:
    """Whether the innermost transform is `torch.vmap`."""
    innermost = unstable.peek_interpreter_stack()
    return innermost is not None and innermost.key() == unstable.TransformType.Vmap


def cond(
    call: Call, branches: Sequence[Any], counts: tuple[int, int], condition: Any, operands: Sequence[Any]
) -> Tensors:
    """Return the results of a `cond` under vmap; `counts` as it takes them."""
    level = _Level.innermost()
    [(lowered, dim)] = level.unwrapped([condition])
    if dim is not None:
        shared, captured = counts
        given, rest = operands[:shared], operands[shared:]
        first = function_of(branches[0])(*given, *rest[:captured])
        second = function_of(branches[1])(*given, *rest[captured:])
        _refuse_numbers((*first, *second))
        chosen = condition.reshape(()).bool()
        return tuple(torch.where(chosen, one, other) for one, other in zip(first, second, strict=True))
    values = level.unwrapped(operands)
    if all(dim is None for _, dim in values):
        with level.interpreter.lower():
            return call(branches, [lowered, *(value for value, _ in values)])
    shared, captured = counts
    when_true = [dim for _, dim in values[: shared + captured]]
    when_false = [dim for _, dim in (*values[:shared], *values[shared + captured :])]
    bodies = level.mapped(branches[0], when_true, values), level.mapped(branches[1], when_false, values)
    with level.interpreter.lower():
        found = call(bodies, [lowered, *(value for value, _ in values)])
    return level.wrapped(found, [0] * len(found))


def scan(call: Call, body: Any, counts: tuple[int, int], operands: Sequence[Any]) -> Tensors:
    """Return the results of a `scan` under vmap; `counts` as it takes them. What it carries becomes batches."""
    level = _Level.innermost()
    values = level.unwrapped(operands)
    if all(dim is None for _, dim in values):
        with level.interpreter.lower():
            return call([body], [value for value, _ in values])
    _refuse_numbers(operands[: counts[0]])
    size = _size_of(values)
    carries, sliced = counts
    with level.interpreter.lower():
        carried = [_in_front(value, dim, size) for value, dim in values[:carries]]
        xs = [value if dim is None else value.movedim(dim, 1) for value, dim in values[carries : carries + sliced]]
        of_slices = [None if dim is None else 0 for _, dim in values[carries : carries + sliced]]
        captured = values[carries + sliced :]
        in_dims = [*[0] * carries, *of_slices, *(dim for _, dim in captured)]
        found = call([level.mapped(body, in_dims, values)], [*carried, *xs, *(value for value, _ in captured)])
    return level.wrapped(found, [*[0] * carries, *[1] * (len(found) - carries)])


def _refuse_numbers(values: Sequence[Any]) -> None:
    """Raise TraceUnsupported for numbers that bodies give or carry: examples may have others."""
    if not all(isinstance(one, torch.Tensor) for one in values):
        raise TraceUnsupported("control-flow", "control flow under vmap", "its bodies give numbers")


def _size_of(values: Sequence[tuple[Any, int | None]]) -> Any:
    """Return the size of the batches among values, of which at least one is one."""
    return next(value.shape[dim] for value, dim in values if dim is not None)


def _in_front(value: torch.Tensor, dim: int | None, size: Any) -> torch.Tensor:
    """Return a contiguous batch in dimension 0, as a step of a scan gives it."""
    return (value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)).contiguous()


@dataclass(frozen=True)
class _Level:
    """A `vmap` that is active."""

    interpreter: Any

    @classmethod
    def innermost(cls) -> _Level:
        return cls(unstable.retrieve_current_functorch_interpreter())

    def unwrapped(self, values: Sequence[Any]) -> list[tuple[Any, int | None]]:
        """Return each value below the level, and its batch dimension, if it is a batch."""
        level = self.interpreter.level()
        return [unstable.unwrap_batch(one, level) if isinstance(one, torch.Tensor) else (one, None) for one in values]

    def mapped(self, body: Any, in_dims: Sequence[int | None], values: Sequence[tuple[Any, int | None]]) -> Mapped:
        return Mapped(body, tuple(in_dims), _size_of(values), self.interpreter.randomness())

    def wrapped(self, results: Sequence[torch.Tensor], dims: Sequence[int]) -> Tensors:
        _refuse_numbers(results)
        level = self.interpreter.level()
        return tuple(unstable.add_batch_dim(one, dim, level) for one, dim in zip(results, dims, strict=True))
