"""Which of a segment's compiled functions is for given values: first one for their sizes, then one for all sizes.

A segment is compiled for the sizes that it meets first. Where it meets others, what has changed becomes symbols, and
the function is used for all sizes of which its guards hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

from framesmith_aten.symbolic import is_symbolic
from framesmith_autograd_compiler.tracer import DynamicDims, Traced, source_of
from framesmith_guards import compile_guards
from framesmith_guards.symbolic_guards import shape_guards

if TYPE_CHECKING:
    from framesmith_guards import CheckProgram

#: Functions for changing sizes that one form of a segment may have, and for sizes by themselves once it has them; how
#: many of these may fail before no more are tried.
MOST_DYNAMIC: Final = 4
MOST_STATIC: Final = 64
MOST_FAILED: Final = 4

#: Checks are of calls of functions; these are about the arguments only.
_FUNCTION: Final = FunctionType((lambda: None).__code__, {})


@dataclass
class Compiled:
    """A segment for some values: `function` is made of `module`, and the rest is as in `tracer.Traced`."""

    function: Callable[..., Any]
    module: fx.GraphModule
    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]
    offset_dependent: bool


@dataclass(frozen=True)
class DynamicVariant:
    """A function for all sizes that `fits` takes."""

    compiled: Compiled
    _known: tuple[Any, ...]
    _check: CheckProgram

    def fits(self, values: Sequence[Any]) -> bool:
        """Whether the function is right for values of these sizes."""
        layouts = map(_layout, values)
        if not all(map(_agree, self._known, layouts)):
            return False
        return self._check(tuple(values), _FUNCTION)


def dynamic_variant(traced: Traced, compiled: Compiled) -> DynamicVariant:
    """The function, with the guards that tracing and compiling it came to rely on."""
    pairs = [(source_of(index), fake) for index, fake in enumerate(traced.fakes)]
    tensors = [pair for pair in pairs if isinstance(pair[1], torch.Tensor)]
    numbers = [pair for pair in pairs if is_symbolic(pair[1])]
    guards = shape_guards(traced.mode.shape_env, tensors, numbers)
    check = compile_guards(guards, [source.local for source, _ in pairs])
    return DynamicVariant(compiled, tuple(map(_layout, traced.fakes)), check)


@dataclass
class Variants:
    """The functions of one segment for values of one form: of the same types and numbers of dimensions."""

    static: dict[Any, Compiled | None] = field(default_factory=dict)
    dynamic: list[DynamicVariant] = field(default_factory=list)
    _first: list[Any] | None = None
    _dynamic_dims: dict[int, set[int]] = field(default_factory=dict)
    _refused: bool = False
    _offset_dependent: bool = False
    _failed: int = 0

    def modules(self) -> list[fx.GraphModule]:
        """What the functions were made of."""
        compiled = [*list(self.static.values()), *(one.compiled for one in list(self.dynamic))]
        return [one.module for one in compiled if one is not None]

    def add_dynamic(self, made: DynamicVariant) -> Compiled:
        """Keep a function for many sizes."""
        self.dynamic.append(made)
        return made.compiled

    def refuse(self) -> None:
        """From now on each size is compiled for by itself."""
        self._refused = True

    def find(self, values: Sequence[Any]) -> Compiled | None:
        """The function for these values, None where there is none on purpose; KeyError where there is none yet."""
        for one in self.dynamic:
            if one.fits(values):
                return one.compiled
        layouts = tuple(map(_layout, values))
        if self._offset_dependent and layouts not in self.static:
            return self.static[layouts, _offsets(values)]
        return self.static[layouts]

    def add_static(self, values: Sequence[Any], compiled: Compiled | None) -> None:
        """Keep a function for these sizes alone, and for these places in memory alone where it depends on them."""
        layouts = tuple(map(_layout, values))
        if compiled is None:
            self._failed += 1
        if compiled is not None and compiled.offset_dependent:
            self._offset_dependent = True
            self.static[layouts, _offsets(values)] = compiled
        else:
            self.static[layouts] = compiled

    def why_no_more(self) -> str | None:
        """Why sizes that are new are not compiled for; None where they are."""
        if self._failed >= MOST_FAILED:
            return f"it failed for {self._failed} sizes"
        return f"it is compiled for {MOST_STATIC} sizes already" if len(self.static) >= MOST_STATIC else None

    def dynamic_dims(self, values: Sequence[Any]) -> DynamicDims:
        """The sizes and numbers that have changed since the first values; none where they are not to be symbols.

        Strides that changed alone, and places in memory, are no sizes: they are compiled for by themselves, or do not
        matter. Infinity and NaN are no symbols, as no guard is about them.
        """
        layouts = list(map(_layout, values))
        if self._first is None:
            self._first = layouts
        for index, (first, layout) in enumerate(zip(self._first, layouts, strict=True)):
            if isinstance(first, tuple):
                dims = {dim for dim, sizes in enumerate(zip(first[0], layout[0], strict=True)) if len({*sizes}) > 1}
                if dims:
                    self._dynamic_dims.setdefault(index, set()).update(dims)
            elif first != layout:
                self._dynamic_dims.setdefault(index, set())
        if self._refused or len(self.dynamic) >= MOST_DYNAMIC:
            return {}
        return {at: dims for at, dims in self._dynamic_dims.items() if dims or math.isfinite(values[at])}


def signature(value: Any) -> Any:
    """What a compiled segment depends on whatever the sizes are."""
    if not isinstance(value, torch.Tensor):
        return type(value)
    return value.dim(), value.dtype, value.device, value.is_conj(), value.is_neg()


def _layout(value: Any) -> Any:
    """The sizes and strides of a tensor, or the number; None for what is a symbol."""
    if isinstance(value, torch.Tensor):
        return tuple(map(_known, value.shape)), tuple(map(_known, value.stride()))
    return _known(value)


def _offsets(values: Sequence[Any]) -> tuple[Any, ...]:
    """Where in their memory the tensors begin."""
    return tuple(value.storage_offset() if isinstance(value, torch.Tensor) else None for value in values)


def _known(number: Any) -> Any:
    """A number as something that equals itself alone: not -0.0 as well as 0.0, and a NaN too."""
    if is_symbolic(number):
        return None
    return number.hex() if type(number) is float else number


def _agree(known: Any, layout: Any) -> bool:
    """Whether sizes and strides, or a number, are what they were where they are no symbols."""
    if isinstance(known, tuple):
        numbers = zip((*known[0], *known[1]), (*layout[0], *layout[1]), strict=True)
        return all(one is None or one == two for one, two in numbers)
    return known is None or known == layout
