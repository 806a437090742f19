"""Ranges of symbolic numbers that an operator's kernel accepts: a dtype's range, one sign.

A probe asks about the present value; for others the kernel may raise for overflow, or for a divisor of 0. So probes ask
about the ends of the dtypes' ranges and about numbers around 0, and guards state that the number is in an accepted
range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch

from framesmith_aten.checks import kernel_probes
from framesmith_aten.symbolic import holds_at_present, is_symbolic
from framesmith_guards.torch_adapter import OpOverload

_HALF: Final = int(torch.finfo(torch.float16).max)
_SHORT: Final = ((-(2**31), 2**31 - 1), (-_HALF, _HALF), (-(2**15), 2**15 - 1), (-255, 255), (0, 255), (-128, 127))
_FLOATS: Final = tuple(torch.finfo(dtype).max for dtype in (torch.float64, torch.float32, torch.bfloat16))
#: Ranges of the dtypes that numbers are converted to, the widest first. Unsigned ones accept some negative numbers.
RANGES: Final[dict[type, tuple[tuple[float, float], ...]]] = {
    int: ((-(2**63), 2**63 - 1), *_SHORT),
    float: (*((-most, most) for most in _FLOATS), (-(2.0**63), 2.0**63 - 1024), *_SHORT),  # floats within int64
}

#: Schema types of a number of the arithmetic; sizes and options are an "int" or a "float".
_ARITHMETIC: Final = frozenset({"number", "Tensor"})

Given = Callable[[Any], tuple[Sequence[Any], Mapping[str, Any]]]
"""Return the arguments of a call with another number for one of them."""


def rely_on_accepted(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Add guards that the kernel accepts the symbolic numbers among the arguments at every call.

    Yields conditions on unbacked numbers, to be checked at a call: that an integer or low-precision dtype holds them.
    (Not for float32: most graphs of such numbers would hold a check, and those that change inputs break there.)
    """
    for number, given in arithmetic_numbers(op, args, kwargs):
        if number.node.has_hint():
            _rely(op, number, given)
        else:
            yield from _to_check(op, number, given)


def arithmetic_numbers(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[Any, Given]]:
    """Yield the symbolic operands of the arithmetic, each with a function that replaces it in the arguments."""
    if not any(map(is_symbolic, (*args, *kwargs.values()))):
        return
    for at, argument in enumerate(op._schema.arguments):
        number = args[at] if at < len(args) else kwargs.get(argument.name)
        declared = str(argument.type).removeprefix("Optional[").removesuffix("]")
        if type(number) in (torch.SymInt, torch.SymFloat) and declared in _ARITHMETIC:
            yield number, _given(args, kwargs, at, argument.name)


def _given(args: Sequence[Any], kwargs: Mapping[str, Any], at: int, name: str) -> Given:
    if at < len(args):
        return lambda value: ((*args[:at], value, *args[at + 1 :]), kwargs)
    return lambda value: (args, {**kwargs, name: value})


def _to_check(op: OpOverload, number: Any, given: Given) -> Iterator[Any]:
    kind = number.node.pytype
    takes = partial(_takes, op, given, kind)
    least, most = next((held for held in RANGES[kind] if all(map(takes, held))), RANGES[kind][0])
    if most < RANGES[int][0][1]:
        yield number >= kind(least)
        yield number <= kind(most)


def _takes(op: OpOverload, given: Given, kind: type, value: float) -> bool:
    return kernel_probes.verdict(op, *given(kind(value))).refusal is None


def _rely(op: OpOverload, number: Any, given: Given) -> None:
    present = number.node.hint
    kind = type(present)
    takes = partial(_takes, op, given, kind)
    one_sign = not all(map(takes, (-1, 0, 1)))
    if one_sign:
        holds_at_present(number > 0 if present > 0 else number < 0 if present < 0 else number == 0)
    below, above = (present < 0, present > 0) if one_sign else (True, True)
    widest = RANGES[kind][0]
    for least, most in RANGES[kind]:
        if least <= present <= most and (not below or takes(least)) and (not above or takes(most)):
            break
    else:
        holds_at_present(number == present)
        return
    if (least, most) == widest and (kind is float or number.node.expr.is_Symbol):  # every number is in it
        return
    if below:
        holds_at_present(number >= kind(least))
    if above:
        holds_at_present(number <= kind(most))
