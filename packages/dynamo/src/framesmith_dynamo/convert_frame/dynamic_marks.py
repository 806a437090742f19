"""Marks on tensors that declare sizes dynamic, static or unbacked: attributes as of `torch._dynamo.mark_dynamic`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from framesmith_dynamo.torch_switches.settings import warn_once

#: The attributes that torch's own functions set: sets of dimensions.
MARKED: Final = "_dynamo_dynamic_indices"
MAYBE: Final = "_dynamo_weak_dynamic_indices"
STATIC_DIMS: Final = "_dynamo_static_indices"
UNBACKED_DIMS: Final = "_dynamo_unbacked_indices"
#: The ranges of marked dimensions: objects with `dim`, `min` and `max`.
RANGES: Final = "_dynamo_dynamic_range"
#: Unbacked dimensions for which torch raises if one is specialised; here that is always so.
STRICT: Final = "_dynamo_strict_unbacked_indices"
#: Arguments of torch's functions that have no effect here, by attribute.
IGNORED_ARGUMENTS: Final = {
    "_dynamo_hint_overrides": "hint_override",
    "_specialize_on": "specialize_on",
    "_dynamo_unbacked_bounds": "min and max of mark_unbacked",
    "_dynamo_shape_ids": "shape_id",
}


@dataclass(frozen=True, slots=True)
class Range:
    """The range of sizes of a marked dimension, in torch's format."""

    dim: int
    min: int | None
    max: int | None


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of a tensor's dimensions. `required`: dimensions that must not be specialised."""

    symbolic: frozenset[int] = frozenset()
    required: frozenset[int] = frozenset()
    static: frozenset[int] = frozenset()
    unbacked: frozenset[int] = frozenset()
    ranges: Mapping[int, tuple[int, int | None]] = field(default_factory=dict)


NO_MARKS: Final = Marks()


class MarkViolated(RuntimeError):
    """A size marked dynamic had to be specialised, or the marks of a tensor contradict it or each other."""


def is_marked(tensor: torch.Tensor) -> bool:
    """Whether the tensor has any mark."""
    return any(attribute.startswith("_dynamo_") for attribute in vars(tensor))


def marks_of(tensor: torch.Tensor, name: str) -> Marks:
    """Return the marks of a tensor; `name` is the program's name for it.

    torch's own functions check nothing. Raises MarkViolated for dimensions that the tensor does not have, a range that
    is empty or excludes the size, contradicting marks of a dimension, and dynamic marks of a parameter.
    """
    if not is_marked(tensor):
        return NO_MARKS
    entries = vars(tensor)
    required, maybe, static, unbacked, strict = (
        frozenset(_normalized(tensor, dim, name) for dim in entries.get(attribute, ()))
        for attribute in (MARKED, MAYBE, STATIC_DIMS, UNBACKED_DIMS, STRICT)
    )
    unbacked |= strict
    _warn_without_effect(entries)
    if isinstance(tensor, torch.nn.Parameter) and (changing := required | maybe | unbacked):
        raise MarkViolated(f"{name}.size({min(changing)}) is marked dynamic, and the sizes of a parameter are static")
    for first, second, words in (
        (required | maybe, static, "dynamic and static"),
        (unbacked, static, "unbacked and static"),
        (required, unbacked, "dynamic and unbacked"),
    ):
        if both := first & second:
            raise MarkViolated(f"{name}.size({min(both)}) is marked both {words}; it is one or the other")
    ranges: dict[int, tuple[int, int | None]] = dict.fromkeys(required, (0, None))
    for each in entries.get(RANGES, ()):
        dim = _normalized(tensor, each.dim, name)
        if dim in required:
            if reason := _why_not_within(tensor, dim, each.min, each.max):
                raise MarkViolated(f"{name} is marked dynamic: {reason}")
            ranges[dim] = (each.min or 0, each.max)
    return Marks(required | maybe | unbacked, required, static, unbacked, ranges)


def _warn_without_effect(entries: Mapping[str, Any]) -> None:
    for attribute, argument in IGNORED_ARGUMENTS.items():
        said = entries.get(attribute)
        if isinstance(said, Mapping) and any(said.values()):
            warn_once(f"{argument} of torch's marks has no effect on framesmith.compile")


def mark_dynamic(tensor: Any, dims: Any, *, min: int | None = None, max: int | None = None) -> None:
    """Declare sizes of a tensor dynamic: compiled functions must work for all of them.

    `dims` is a dimension or several, negative ones from the end; `min` and `max` are the inclusive bounds of the size.
    A compiled function that would specialise such a size raises at its call. Raises TypeError and ValueError for a
    parameter (its sizes are static), a dimension that the tensor does not have, a range that is empty or excludes the
    size, and contradicting marks.
    """
    marked = _dimensions(tensor, dims, "mark_dynamic")
    _check_range(tensor, marked, min, max)
    _refuse_both(tensor, marked, STATIC_DIMS, "mark_dynamic", "mark_static")
    _refuse_both(tensor, marked, UNBACKED_DIMS, "mark_dynamic", "mark_unbacked")
    _add(tensor, MARKED, marked)
    if min is not None or max is not None:
        known = [each for each in vars(tensor).get(RANGES, ()) if each.dim not in marked]
        vars(tensor)[RANGES] = {*known, *(Range(dim, min, max) for dim in marked)}


def maybe_mark_dynamic(tensor: Any, dims: Any) -> None:
    """As `mark_dynamic`, but a compiled function may specialise the size."""
    marked = _dimensions(tensor, dims, "maybe_mark_dynamic")
    _refuse_both(tensor, marked, STATIC_DIMS, "maybe_mark_dynamic", "mark_static")
    _add(tensor, MAYBE, marked)


def mark_static(tensor: Any, dims: Any = None) -> None:
    """Declare sizes of a tensor static (all, if no dimension is named): each size is compiled for separately."""
    if dims is None and isinstance(tensor, torch.Tensor):
        dims = range(tensor.dim())
    marked = _dimensions(tensor, dims, "mark_static", parameters=True)
    for name, other in ((MARKED, "mark_dynamic"), (MAYBE, "maybe_mark_dynamic"), (UNBACKED_DIMS, "mark_unbacked")):
        _refuse_both(tensor, marked, name, "mark_static", other)
    _add(tensor, STATIC_DIMS, marked)


def mark_unbacked(tensor: Any, dims: Any) -> None:
    """Declare sizes of a tensor unbacked: no decision may depend on them, not even whether one is 0 or 1."""
    marked = _dimensions(tensor, dims, "mark_unbacked")
    _refuse_both(tensor, marked, STATIC_DIMS, "mark_unbacked", "mark_static")
    _refuse_both(tensor, marked, MARKED, "mark_unbacked", "mark_dynamic")
    _add(tensor, UNBACKED_DIMS, marked)


def _dimensions(tensor: Any, dims: Any, function: str, *, parameters: bool = False) -> frozenset[int]:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{function} marks a tensor, not a {type(tensor).__name__}")
    if isinstance(tensor, torch.nn.Parameter) and not parameters:
        raise ValueError(
            f"{function}: the sizes of a parameter are static; mark the tensors that are passed to the function"
        )
    given = list(dims) if isinstance(dims, Iterable) and not isinstance(dims, torch.Tensor) else [dims]
    for dim in given:
        _check_int(dim, f"{function}: a dimension")
        if not -tensor.dim() <= dim < tensor.dim():
            raise ValueError(f"{function}: {_no_dimension(tensor, dim)}")
    return frozenset(dim % tensor.dim() for dim in given)


def _normalized(tensor: torch.Tensor, dim: int, name: str) -> int:
    """Return a marked dimension as a non-negative index."""
    if not -tensor.dim() <= dim < tensor.dim():
        raise MarkViolated(f"{name} is marked: {_no_dimension(tensor, dim)}")
    return dim % tensor.dim()


def _no_dimension(tensor: torch.Tensor, dim: int) -> str:
    return f"there is no dimension {dim}; the tensor has {tensor.dim()} (sizes {tuple(tensor.shape)})"


def _check_int(value: object, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} is an int, not {value!r}")


def _why_not_within(tensor: torch.Tensor, dim: int, least: int | None, most: int | None) -> str:
    """Return why a dimension's size is not within `least` and `most`; "" if it is."""
    if least is not None and least < 0:
        return f"min={least} is negative"
    if least is not None and most is not None and least > most:
        return f"min={least} is greater than max={most}"
    size = tensor.size(dim)
    if (least is not None and size < least) or (most is not None and size > most):
        return f"dimension {dim} has size {size}, which is not from min={least} to max={most}"
    return ""


def _check_range(tensor: torch.Tensor, dims: frozenset[int], least: int | None, most: int | None) -> None:
    for name, bound in (("min", least), ("max", most)):
        if bound is not None:
            _check_int(bound, f"mark_dynamic: {name}")
    for dim in dims:
        if reason := _why_not_within(tensor, dim, least, most):
            raise ValueError(f"mark_dynamic: {reason}")


def _refuse_both(tensor: torch.Tensor, dims: frozenset[int], attribute: str, now: str, before: str) -> None:
    both = sorted(dims & frozenset(vars(tensor).get(attribute, ())))
    if both:
        raise ValueError(f"{now}: {before} was called for dimension {both[0]} of this tensor; it is one or the other")


def _add(tensor: torch.Tensor, attribute: str, dims: frozenset[int]) -> None:
    vars(tensor)[attribute] = {*vars(tensor).get(attribute, ()), *dims}
