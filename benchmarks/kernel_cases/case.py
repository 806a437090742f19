"""The case of a kernel, and makers of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.models.zoo import BOTH, SINGLE

Tensor = torch.Tensor
Inputs = tuple[Any, ...]
Make = Callable[[torch.dtype], Inputs]

__all__ = ["BOTH", "SINGLE", "Case", "Inputs", "Make", "Tensor", "group", "normal", "positive", "words"]


@dataclass(frozen=True)
class Case:
    """A row: `fn` is measured on what `make` gives for a type: tensors, lists of tensors, numbers.

    backward: a step is forward and backward, with the gradients of all floating inputs; `fn` gives one tensor.
    random: the results are not compared with eager's.
    scale: how large sums are whose terms cancel; absolute tolerances grow with it.
    """

    name: str
    fn: Callable[..., object]
    make: Make
    dtypes: tuple[str, ...] = BOTH
    backward: bool = False
    random: bool = False
    scale: float = 1.0
    kind: str = ""


def group(kind: str, *cases: Case) -> tuple[Case, ...]:
    """The cases of a kind."""
    return tuple(replace(case, kind=kind) for case in cases)


def normal(*shapes: tuple[int, ...]) -> Make:
    """Normal numbers in those shapes, rounded from the same ones in every type."""
    return lambda dtype: tuple(torch.randn(shape).to(dtype) for shape in shapes)


def positive(*shapes: tuple[int, ...]) -> Make:
    """Numbers between 0.5 and 1.5."""
    return lambda dtype: tuple((torch.rand(shape) + 0.5).to(dtype) for shape in shapes)


def words(table: tuple[int, ...], shape: tuple[int, ...]) -> Make:
    """A table and indices of its rows."""
    return lambda dtype: (torch.randn(table).to(dtype), torch.randint(0, table[0], shape))
