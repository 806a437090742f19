"""Parts of an input: what `select`, `slice` and `unbind`, one after the other, show of it."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith_aten.operators import arguments, view_written
from framesmith_guards.torch_adapter import OpOverload, aten


@dataclass(frozen=True, slots=True)
class Step:
    """`select` of (dim, index), or `slice` on (dim, start, end, step); known numbers are from the front."""

    target: OpOverload
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """The part of an input that steps show. Two are equal where the steps are."""

    root: fx.Node
    steps: tuple[Step, ...] = ()

    def then(self, step: Step) -> Region:
        return Region(self.root, (*self.steps, step))

    def lies_in(self, other: Region) -> bool:
        """Whether this is a part of the other one, by its first steps."""
        return self.root is other.root and self.steps[: len(other.steps)] == other.steps

    def is_disjoint_from(self, other: Region) -> bool:
        """Whether the two surely have no element in common."""
        if self.root is not other.root:
            return False
        pairs = zip(_ranges(self), _ranges(other), strict=True)
        return any(a is not None and b is not None and (a[1] <= b[0] or b[1] <= a[0]) for a, b in pairs)


def _ranges(region: Region) -> list[tuple[int, int] | None]:
    """(first, behind the last) of the indices in each of the root's dimensions, None where they are not known."""
    sizes = region.root.meta["val"].shape
    ranges: list[tuple[int, int] | None] = [(0, size) if type(size) is int else None for size in sizes]
    strides: list[Any] = [1] * len(sizes)
    dims = [*range(len(sizes))]
    for step in region.steps:
        dim, first, *more = step.args
        at = dims[dim] if more else dims.pop(dim)
        known, between = ranges[at], strides[at]
        last = more[0] - 1 if more else first
        if known is None or type(first) is not int or type(last) is not int:
            ranges[at] = None
        else:
            ranges[at] = (known[0] + first * between, known[0] + max(last, first) * between + 1)
        if more:
            strides[at] = between * more[1]
    return ranges


def step_of(node: fx.Node) -> tuple[fx.Node, Step] | None:
    """(what the node shows a part of, which part), or None: it is of another kind."""
    if node.target is operator.getitem:
        parent, index = node.args
        if isinstance(parent, fx.Node) and parent.target is aten.unbind.int and isinstance(parent.args[0], fx.Node):
            dim = arguments(parent.target, parent.args, parent.kwargs)["dim"]
            return _step(aten.select.int, parent.args[0], {"dim": dim, "index": index})
        return None
    if node.target not in (aten.select.int, aten.slice.Tensor) or not isinstance(node.args[0], fx.Node):
        return None
    return _step(node.target, node.args[0], arguments(node.target, node.args, node.kwargs))


def _step(view: OpOverload, source: fx.Node, values: dict[str, Any]) -> tuple[fx.Node, Step] | None:
    shape = source.meta["val"].shape
    dim = values["dim"] % len(shape)
    size = shape[dim]
    if view is aten.select.int:
        index = values["index"]
        known = type(index) is int and type(size) is int
        return source, Step(view, (dim, index % size if known else index))
    start, end, step = (values[name] for name in ("start", "end", "step"))
    if type(size) is not int or type(step) is not int:
        return None
    start, end = (default if n is None else n for n, default in ((start, 0), (end, size)))
    if type(start) is not int or type(end) is not int:
        return None
    first, last, _ = slice(start, end).indices(size)
    return source, Step(view, (dim, first, max(first, last), step))


def part_written(node: fx.Node) -> tuple[fx.Node, fx.Node, Step] | None:
    """(what is copied, what is written into the copy, to which part), of `select_scatter` and `slice_scatter`."""
    view = view_written(node.target)
    if not isinstance(node.target, OpOverload) or view not in (aten.select.int, aten.slice.Tensor):
        return None
    values = arguments(node.target, node.args, node.kwargs)
    source, value = values["self"], values["src"]
    if not isinstance(source, fx.Node) or not isinstance(value, fx.Node):
        return None
    found = _step(view, source, values)
    return None if found is None else (source, value, found[1])


def region_of(node: fx.Node) -> Region | None:
    """The part of an input that the node shows, or None: it is none of these parts."""
    if node.op == "placeholder":
        return Region(node) if isinstance(node.meta.get("val"), torch.Tensor) else None
    found = step_of(node)
    whole = None if found is None else region_of(found[0])
    return None if found is None or whole is None else whole.then(found[1])
