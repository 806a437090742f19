"""Split a reduction with few results and many elements in two, so that its first half has parallel rows.

The split depends on sizes only, never on the number of threads, so that results do not either.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from framesmith_backends.ir import index
from framesmith_backends.ir.expr import Load, substitute
from framesmith_backends.ir.index import Ix, Var
from framesmith_backends.ir.program import Def, Layout, Program, contiguous_strides
from framesmith_backends.ir.size import hint, product

# Reductions over fewer elements are not split.
MANY_ELEMENTS, LANE_BLOCK = 1 << 15, 64


@dataclass(frozen=True, slots=True)
class Splitting:
    """Fewer units of work than `few` leave threads idle; `wanted` do not, in up to `most_parts` for a loop.

    Units of fewer elements than `least` take less time than a launch, and are not split.
    """

    few: int
    wanted: int
    most_parts: int
    least: int


def split_reductions(program: Program, by: Splitting) -> Program:
    defs: dict[str, Def] = {}
    layouts = dict(program.layouts)
    for d in program.defs.values():
        parts = _parts(d, by)
        if parts is None:
            defs[d.name] = d
            continue
        first, second = _halves(d, *parts)
        defs[first.name], defs[second.name] = first, second
        layouts[first.name] = first.layout
    return replace(program, defs=defs, layouts=layouts)


def _parts(d: Def, by: Splitting) -> tuple[list[Var], dict[Var, int]] | None:
    """The reduced variables that become results of the first half, whole or by a number of parts."""
    elements = hint(product(v.size for v in d.domain))
    if d.reduction is None or elements < MANY_ELEMENTS:
        return None
    kept = hint(product(v.size for v in d.kept))
    units = kept // LANE_BLOCK if d.domain[-1] in d.kept else kept
    if units >= by.few or elements < by.least * units:
        return None
    wanted = max(2, by.wanted // max(units, 1))
    whole: list[Var] = []
    for var in (v for v in d.domain if v in d.reduced):
        fitting = _numbers_of_parts(var, wanted, by.most_parts)
        if fitting:
            return whole, {var: fitting[0]}
        whole.append(var)
        wanted = -(-wanted // hint(var.size))
        if wanted < 2:
            break
    if not whole or len(whole) == len(d.reduced):
        return None
    return whole, {}


def _numbers_of_parts(var: Var, wanted: int, most: int) -> list[int]:
    """Into how many equal parts, at least as many as wanted, the variable's range can be cut whatever the sizes are."""
    if isinstance(var.size, int):
        return [k for k in range(wanted, min(var.size // 2, most) + 1) if var.size % k == 0]
    return []


def _halves(d: Def, whole: list[Var], parts: dict[Var, int]) -> tuple[Def, Def]:
    values: dict[Var, Ix] = {}
    domain: list[Var] = []
    outer: list[Var] = []
    reduced: set[Var] = set()
    for var in d.domain:
        if var in parts:
            high, low = Var(f"{var.name}h", parts[var]), Var(f"{var.name}l", var.size // parts[var])
            values[var] = index.total(((index.of(high), low.size), (index.of(low), 1)))
            domain += [high, low]
            outer.append(high)
            reduced.add(low)
        else:
            domain.append(var)
            if var in whole:
                outer.append(var)
            elif var in d.reduced:
                reduced.add(var)
    axes = (*outer, *d.kept)
    shape = tuple(v.size for v in axes)
    name = f"{d.name}.part"
    layout = Layout(shape, contiguous_strides(shape), d.dtype, d.layout.device)
    first = Def(
        name, layout, tuple(domain), axes, substitute(d.body, values), d.reduction, frozenset(reduced),
        d.origin, d.position,
    )  # fmt: skip
    again = Load(name, tuple(index.of(v) for v in axes), d.dtype)
    second = replace(d, domain=axes, body=again, reduced=frozenset(outer))
    return first, second
