"""Which of a segment's compiled functions is for given values: first one for their sizes, then one for all sizes.

A segment is compiled for the sizes that it meets first. Where it meets others, what has changed becomes symbols, and
the function is used for all sizes of which its guards hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import torch

from framesmith_aten.symbolic import is_symbolic
from framesmith_autograd_compiler.tracer import Changing, Traced, source_of
from framesmith_guards import compile_guards
from framesmith_guards.torch_adapter import shape_guards

if TYPE_CHECKING:
    from framesmith_guards import CheckProgram

#: Functions for changing sizes that one segment may have, and sizes compiled for by themselves once it has them.
MOST_DYNAMIC: Final = 4
MOST_STATIC: Final = 64

#: Checks are of calls of functions; these are about the arguments only.
_FUNCTION: Final = FunctionType((lambda: None).__code__, {})


@dataclass
class Compiled:
    """A segment for some values; `inputs` and `outputs` as in `tracer.Traced`."""

    function: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]


@dataclass(frozen=True)
class ForSizes:
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


def for_sizes(traced: Traced, compiled: Compiled) -> ForSizes:
    """The function, with the guards that tracing and compiling it came to rely on."""
    pairs = [(source_of(index), fake) for index, fake in enumerate(traced.fakes)]
    tensors = [pair for pair in pairs if isinstance(pair[1], torch.Tensor)]
    numbers = [pair for pair in pairs if is_symbolic(pair[1])]
    guards = shape_guards(traced.mode.shape_env, tensors, numbers)
    check = compile_guards(guards, [source.local for source, _ in pairs])
    return ForSizes(compiled, tuple(map(_layout, traced.fakes)), check)


@dataclass
class Variants:
    """The functions of one segment for values of one form: of the same types and numbers of dimensions."""

    static: dict[Any, Compiled | None] = field(default_factory=dict)
    dynamic: list[ForSizes] = field(default_factory=list)
    _first: list[Any] | None = None
    _changing: dict[int, set[int]] = field(default_factory=dict)

    _refused: bool = False

    def add(self, made: ForSizes) -> ForSizes:
        """Keep a function for many sizes."""
        self.dynamic.append(made)
        return made

    def refuse(self) -> None:
        """From now on each size is compiled for by itself."""
        self._refused = True

    def find(self, values: Sequence[Any]) -> ForSizes | Compiled | None:
        """The function for these values; KeyError where there is none yet."""
        for one in self.dynamic:
            if one.fits(values):
                return one
        return self.static[tuple(map(_layout, values))]

    def keep(self, values: Sequence[Any], compiled: Compiled | None) -> None:
        """Keep a function for these sizes alone."""
        if len(self.static) >= MOST_STATIC:
            self.static.clear()
        self.static[tuple(map(_layout, values))] = compiled

    def changing(self, values: Sequence[Any]) -> Changing:
        """What has changed since the first values; nothing for these, and where it is not to be tried."""
        layouts = list(map(_layout, values))
        if self._first is None:
            self._first = layouts
        for index, (first, layout) in enumerate(zip(self._first, layouts, strict=True)):
            if first != layout:
                dims = range(len(first[0])) if isinstance(first, tuple) else ()
                self._changing.setdefault(index, set()).update(dim for dim in dims if first[0][dim] != layout[0][dim])
        return {} if self._refused or len(self.dynamic) >= MOST_DYNAMIC else self._changing


def form(value: Any) -> Any:
    """What a compiled segment depends on whatever the sizes are."""
    if not isinstance(value, torch.Tensor):
        return type(value)
    return value.dim(), value.dtype, value.device, value.is_conj(), value.is_neg()


def _layout(value: Any) -> Any:
    """The sizes, strides and offset of a tensor, or the number; None for what is a symbol."""
    if isinstance(value, torch.Tensor):
        return tuple(map(_known, value.shape)), tuple(map(_known, value.stride())), value.storage_offset()
    return _known(value)


def _known(number: Any) -> Any:
    return None if is_symbolic(number) else number


def _agree(known: Any, layout: Any) -> bool:
    """Whether sizes and strides, or a number, are what they were where they are no symbols."""
    if isinstance(known, tuple):
        numbers = zip((*known[0], *known[1]), (*layout[0], *layout[1]), strict=True)
        return all(one is None or one == two for one, two in numbers)
    return known is None or known == layout
