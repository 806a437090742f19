"""The compiled variants of a segment: static for the first sizes, then dynamic ones.

A segment is compiled for the first sizes it gets. For other sizes, those that changed become symbols, and the variant
is used for all sizes that its guards allow.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Number
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import fx

from framesmith_aten.contract import Runner
from framesmith_aten.symbolic import is_symbolic
from framesmith_autograd_compiler import user_calls
from framesmith_autograd_compiler.segments.tracer import DynamicDims, Traced, source_of
from framesmith_guards import Guard, GuardError, TensorSpec, compile_guards
from framesmith_guards.symbolic_guards import shape_guards

if TYPE_CHECKING:
    from framesmith_guards import CheckProgram

#: Limits for one signature of a segment: dynamic variants, static ones, and failed compilations.
MOST_DYNAMIC: Final = 4
MOST_STATIC: Final = 64
MOST_FAILED: Final = 4
#: Exact checks of one segment, and those made of one function for values that were found to fit another way.
MOST_RECENT: Final = 8
MOST_EXACT: Final = 2

Layouts = tuple[Any, ...]
"""Sizes and strides of tensors, and numbers; None for a symbol."""

#: Checks take the called function, whose globals are those of traced user code.
FUNCTION: Final = cast(FunctionType, user_calls.call_tensor_hook)


Captured = tuple[Any, ...]
"""Tensors that user code in a segment reads from elsewhere: see Note [User code] in `user_code`."""


def _extracted(check: CheckProgram, values: tuple[Any, ...]) -> Captured | None:
    """Return the inputs that a check finds, if it holds."""
    if check.inputs:
        return check.extract(values, FUNCTION)
    return () if check(values, FUNCTION) else None


@dataclass
class Compiled:
    """A compiled segment: `runner` is made of `module`; for the rest see `tracer.Traced`.

    `user`: the guards of the user code in it, and the sources of tensors that it takes behind the others.
    """

    runner: Runner
    module: fx.GraphModule
    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]
    offset_dependent: bool
    user: CheckProgram | None = None
    exact_checks: int = 0

    def captured(self, values: Sequence[Any]) -> Captured | None:
        """Return the tensors that the segment's user code reads from elsewhere; None if that code is another by now."""
        return () if self.user is None else _extracted(self.user, tuple(values))

    def run(self, arguments: list[Any]) -> Sequence[Any]:
        """Run the function; a boxed one empties the list."""
        boxed = self.runner.boxed
        return self.runner.run(*arguments) if boxed is None else boxed(arguments)


@dataclass(frozen=True)
class DynamicVariant:
    """A function for all sizes that its guards allow.

    `exact`: a native check of values whose other properties are those of the first ones, too; None where none is made.
    """

    compiled: Compiled
    exact: CheckProgram | None
    _known: Layouts
    _check: CheckProgram

    def fits(self, values: Sequence[Any]) -> bool:
        """Whether the function is right for values of these sizes."""
        if not all(map(_agree, self._known, layouts_of(values))):
            return False
        return self._check(tuple(values), FUNCTION)


def dynamic_variant(traced: Traced, compiled: Compiled, values: Sequence[Any]) -> DynamicVariant:
    """Return the function with the guards of its trace and compilation; `values` are those of the trace."""
    pairs = [(source_of(index), fake) for index, fake in enumerate(traced.fakes)]
    tensors = [pair for pair in pairs if isinstance(pair[1], torch.Tensor)]
    numbers = [pair for pair in pairs if is_symbolic(pair[1])]
    guards = shape_guards(traced.mode.shape_env, tensors, numbers)
    check = compile_guards(guards, [source.local for source, _ in pairs])
    exact = exact_check(values, compiled.user, traced.fakes, guards)
    return DynamicVariant(compiled, exact, layouts_of(traced.fakes), check)


def exact_check(
    values: Sequence[Any], user: CheckProgram | None, fakes: Sequence[Any] = (), guards: Iterable[Guard] = ()
) -> CheckProgram | None:
    """Return a native check of all properties of these values, `guards` and those of user code, whose inputs it finds.

    `fakes` have symbols in place of sizes and numbers that are not checked. None where a value has no guard.
    """
    found = [*guards, *(() if user is None else user.guards)]
    try:
        for index, (value, fake) in enumerate(itertools.zip_longest(values, fakes)):
            source = source_of(index)
            if isinstance(value, torch.Tensor):
                found.append(Guard(source, "TENSOR_MATCH", TensorSpec.of(value, like=fake)))
            elif not is_symbolic(fake) and not is_user_code(value):
                found.append(Guard(source, "EQUALS_MATCH", value))
        names = [source_of(index).local for index in range(len(values))]
        return compile_guards(found, names, inputs=() if user is None else user.inputs)
    except GuardError:
        return None


@dataclass
class RecentVariants:
    """Exact checks, asked before the variants: one native call in place of comparing value by value."""

    _checks: list[tuple[CheckProgram, Compiled]] = field(default_factory=list)

    def find(self, values: Sequence[Any]) -> tuple[Compiled, Captured] | None:
        """Return the function that these values were last found to need, and what it captures, or None."""
        arguments = tuple(values)
        for check, compiled in self._checks:
            captured = _extracted(check, arguments)
            if captured is not None:
                return compiled, captured
        return None

    def note(self, compiled: Compiled, exact: CheckProgram | None) -> None:
        """Add a check; the oldest of more than `MOST_RECENT` is dropped."""
        if exact is not None:
            self._checks[MOST_RECENT - 1 :] = []
            self._checks.insert(0, (exact, compiled))


@dataclass
class Variants:
    """The compiled functions of one segment for values of one signature: the same dtypes and ranks."""

    static: dict[Any, list[Compiled] | None] = field(default_factory=dict)
    dynamic: list[DynamicVariant] = field(default_factory=list)
    _first: Layouts | None = None
    _dynamic_dims: dict[int, set[int]] = field(default_factory=dict)
    _refused: bool = False
    _offset_dependent: bool = False
    _failed: int = 0

    def modules(self) -> list[fx.GraphModule]:
        static = [one for found in list(self.static.values()) for one in found or ()]
        return [one.module for one in (*static, *(one.compiled for one in list(self.dynamic)))]

    def refuse(self) -> None:
        """Compile for each size by itself from now on."""
        self._refused = True

    def find(self, values: Sequence[Any]) -> tuple[Compiled, Captured] | None:
        """Return the function for these values and what it captures, None for one that failed.

        Raises KeyError where there is none yet.
        """
        for one in self.dynamic:
            captured = one.compiled.captured(values) if one.fits(values) else None
            if captured is not None:
                return one.compiled, captured
        layouts = layouts_of(values)
        static = self.static[self._key(layouts, values, self._offset_dependent and layouts not in self.static)]
        for compiled in static or ():
            captured = compiled.captured(values)
            if captured is not None:
                return compiled, captured
        if static is None:
            return None
        raise KeyError(layouts)

    @staticmethod
    def _key(layouts: Layouts, values: Sequence[Any], with_offsets: bool) -> Any:
        return (layouts, _offsets(values)) if with_offsets else layouts

    def add_static(self, values: Sequence[Any], compiled: Compiled) -> None:
        """Add a function for these sizes, and for these storage offsets where it depends on them."""
        layouts = layouts_of(values)
        if compiled.offset_dependent:
            self._offset_dependent = True
        key = self._key(layouts, values, compiled.offset_dependent)
        self.static[key] = [*(self.static.get(key) or ()), compiled]

    def add_failed(self, layouts: Layouts) -> None:
        """Try values of these sizes no more."""
        self._failed += 1
        self.static[layouts] = None

    def why_no_more(self) -> str | None:
        """Return why new sizes are not compiled for, or None."""
        if self._failed >= MOST_FAILED:
            return f"it failed for {self._failed} sizes"
        return f"it is compiled for {MOST_STATIC} sizes already" if len(self.static) >= MOST_STATIC else None

    def dynamic_dims(self, values: Sequence[Any]) -> DynamicDims:
        """Return the sizes and numbers that have changed since the first values and may be symbols.

        Strides that changed alone are compiled for by themselves; storage offsets do not matter. Infinity and NaN are
        no symbols, as guards cannot express them.
        """
        layouts = layouts_of(values)
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
    """Return the properties of a value that a compiled segment depends on for any sizes."""
    if not isinstance(value, torch.Tensor):
        return type(value)
    return value.dim(), value.dtype, value.device, value.is_conj(), value.is_neg()


def is_user_code(value: Any) -> bool:
    """Whether a value is a hook or a Function's context, which has guards of its own."""
    return value is not None and not isinstance(value, (torch.Tensor, Number))


def layouts_of(values: Sequence[Any]) -> Layouts:
    """Return the layout of each value; None for user code."""
    return tuple(map(_layout, values))


def _layout(value: Any) -> Any:
    """Return the sizes and strides of a tensor, or the number; None for a symbol."""
    if isinstance(value, torch.Tensor):
        return tuple(map(_known, value.shape)), tuple(map(_known, value.stride()))
    return None if is_user_code(value) else _known(value)


def _offsets(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(value.storage_offset() if isinstance(value, torch.Tensor) else None for value in values)


def _known(number: Any) -> Any:
    """Return a number as a key that equals itself alone: -0.0 differs from 0.0, NaN equals NaN."""
    if is_symbolic(number):
        return None
    return number.hex() if type(number) is float else number


def _agree(known: Any, layout: Any) -> bool:
    """Whether sizes and strides, or a number, are as before where they are no symbols."""
    if isinstance(known, tuple):
        numbers = zip((*known[0], *known[1]), (*layout[0], *layout[1]), strict=True)
        return all(one is None or one == two for one, two in numbers)
    return known is None or known == layout
