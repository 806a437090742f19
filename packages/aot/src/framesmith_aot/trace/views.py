"""Chains of view operators between two tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from framesmith_aten.graphs.nodes import view_source
from framesmith_aten.symbolic import is_symbolic


@dataclass(frozen=True)
class NumberAt:
    """A number that is known at a call, by its position among `JointGraph.numbers`."""

    index: int


@dataclass(frozen=True)
class ViewStep:
    """One view operator: `target(previous, *args, **kwargs)`, then `[item]` for a multi-output one.

    Steps with the same `call`, its name, are of one call.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    item: int | None = None
    call: str = ""

    def __call__(self, value: torch.Tensor) -> Any:
        out = self.target(value, *self.args, **dict(self.kwargs))
        return out if self.item is None else out[self.item]


def data(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor.data`, which no operator makes: it has its own version counter, and no history."""
    return tensor.data


DATA = ViewStep(data, (), ())


class _WithHistory(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, view: torch.Tensor, history: torch.Tensor) -> torch.Tensor:
        return view  # which autograd makes a view of, as it does in eager mode

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, gradients[0]


def with_history(view: torch.Tensor, history: torch.Tensor) -> torch.Tensor:
    """Return a view of `view`, of any shape, whose gradient goes to `history`, which has the same shape and values."""
    found: torch.Tensor = _WithHistory.apply(view, history)  # type: ignore[no-untyped-call]
    return found


@dataclass(frozen=True)
class Restride:
    """The view given by sizes, strides and the storage offset relative to the base's (in elements)."""

    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return value.as_strided(self.size, self.stride, value.storage_offset() + self.offset)


Steps = tuple[ViewStep | Restride, ...]


def with_numbers(step: ViewStep | Restride, number: Callable[[Any], Any]) -> ViewStep | Restride:
    """Return the step with nodes and symbols replaced."""
    if isinstance(step, Restride):
        return Restride(_replaced(step.size, number), _replaced(step.stride, number), _replaced(step.offset, number))
    kwargs = tuple((name, _replaced(value, number)) for name, value in step.kwargs)
    return replace(step, args=_replaced(step.args, number), kwargs=kwargs)


def numbers_of_steps(steps: Steps) -> set[int]:
    """Return the positions of the numbers that steps need."""
    return {found.index for step in steps for found in _numbers_in(list(vars(step).values()))}


def _numbers_in(value: Any) -> Iterator[NumberAt]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _numbers_in(item)
    elif isinstance(value, NumberAt):
        yield value


def _replaced(value: Any, number: Callable[[Any], Any]) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_replaced(item, number) for item in value)
    return number(value) if isinstance(value, fx.Node) or is_symbolic(value) else value


def chain(node: fx.Node, base: fx.Node) -> Steps | None:
    """Return the steps from `base` to its view `node`; () when they are the same, None when no chain leads there."""
    steps: list[ViewStep] = []
    while node is not base:
        source = view_source(node)
        if source is None:
            return None
        steps.append(_step(node))
        node = source
    return tuple(reversed(steps))


def _step(node: fx.Node) -> ViewStep:
    call: Any = node
    item: Any = None
    if node.target is operator.getitem:
        call, item = node.args
    return ViewStep(call.target, tuple(call.args[1:]), tuple(call.kwargs.items()), item, call.name)


def restride(view: torch.Tensor, base: torch.Tensor) -> Restride | None:
    """Return the view as sizes and strides over its base; None where dtypes or lazy bits differ."""
    if view.dtype != base.dtype or view.is_conj() != base.is_conj() or view.is_neg() != base.is_neg():
        return None
    return Restride(tuple(view.shape), tuple(view.stride()), view.storage_offset() - base.storage_offset())
