"""Horizontal fusion: several kernels as one Triton function, each program of which is a program of one of them.

A program finds by its number whose it is, and does what all of them do with that one's buffers: there is one text for
all, also for lines of elements whose numbers differ.

Note [Branches]. A program finds its buffers by comparing its number with where each kernel's programs begin, half of
what is left at a time. These are to stay branches: LLVM would read all buffers' addresses and choose among them one by
one, which for 128 kernels takes 236 registers instead of 39. What differs in text and may have effects (`fs.since`) it
neither merges nor does beforehand. Each branch costs Triton time for everything that is known there, so that of many
kernels some at a time are chosen among in a function of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import gcd

from framesmith_backends.ir.expr import Number
from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.ir.matmul import OnGpu
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.ir.symbolic.size import Size, symbols
from framesmith_backends.render.nested_lines import flat
from framesmith_backends.render.triton.kernel import MOST_PROGRAMS, PROGRAM, SIZE_DIVISOR, TritonKernel, warps_of
from framesmith_backends.render.triton.row_passes import write_program
from framesmith_backends.render.triton.state import Scope, Writing
from framesmith_backends.render.triton.tile import Axis, Config, Tile, covering, fixed, reaches
from framesmith_backends.render.triton.tile_rules import LANE_BLOCK
from framesmith_backends.schedule.horizontal import LINE, SharedForm, horizontal_groups, line_form
from framesmith_backends.schedule.kernels.loops import rewrite_indices
from framesmith_backends.target import MOST_PARAMETERS

#: Among so many kernels one function chooses.
SEVERAL = 12
#: The number of elements of a program's line, in the program.
ELEMENTS = "elements"


@dataclass(frozen=True, slots=True)
class TritonLaunch:
    """A Triton function, the buffers that it is launched on, in the order of its pointers, and the items it runs."""

    kernel: TritonKernel
    buffers: tuple[str, ...]
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gathered:
    """The members of one launch: an item, or kernels of the same structure, with what these share."""

    members: tuple[OnGpu, ...]
    form: SharedForm

    @property
    def name(self) -> str:
        return self.members[0].name

    def text(self) -> str:
        more = len(self.members) - 1
        return f"{self.name} and {more} more" if more else self.name

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(member for member in self.members if isinstance(member, Kernel))

    @property
    def line(self) -> Kernel | None:
        """Of several kernels that go along lines of elements, that over the longest of these."""
        if self.form.line is None or len(self.members) == 1:
            return None
        return _over(self.form.line, max(_counts(self.kernels)))

    def launch(self, rendered: Mapping[str, TritonKernel], form: Config | None = None) -> TritonLaunch:
        """Return the launch; `rendered` has each member as a function of its own; `form` is for lines."""
        functions = [rendered[member.name] for member in self.members]
        if len(functions) == 1:
            return alone(self.members[0], functions[0])
        return _together(self.form, self.kernels, functions, form)


def alone(item: OnGpu, function: TritonKernel) -> TritonLaunch:
    """The launch of an item by itself."""
    return TritonLaunch(function, _buffers(item), (item.name,))


def gathered(
    kernels: Sequence[OnGpu],
    rendered: Mapping[str, TritonKernel],
    shown: Mapping[str, frozenset[str]],
) -> list[Gathered]:
    """The kernels and matmuls of a run by launches, in order; `shown` is as `horizontal_groups` has it."""
    structures = [_structure(kernel, rendered[kernel.name]) for kernel in kernels]
    most = MOST_PARAMETERS - max((len(kernel.numbers) for kernel in kernels), default=0)
    found: list[Gathered] = []
    for one in horizontal_groups(kernels, structures, most, shown):
        members = tuple(kernels[k] for k in one.members)
        if len(members) == 1 or sum(fixed(rendered[kernel.name].grid) for kernel in members) > MOST_PROGRAMS:
            found += [Gathered((kernel,), SharedForm(kernel.name)) for kernel in members]
        else:
            found.append(Gathered(members, one.form))
    return found


def _structure(kernel: OnGpu, function: TritonKernel) -> SharedForm:
    several = function.longer is not None or function.has_first or not isinstance(function.grid, int)
    if not isinstance(kernel, Kernel) or several or function.has_checks:
        return SharedForm(kernel.name)
    line = None if reaches(kernel) else line_form(kernel)  # lines are walked with 32 bits
    return line or SharedForm(replace(function, name="", source=function.anonymous_source))


def _buffers(kernel: OnGpu) -> tuple[str, ...]:
    return tuple(param.name for param in kernel.params)


def _together(
    shared: SharedForm, kernels: Sequence[Kernel], functions: Sequence[TritonKernel], form: Config | None
) -> TritonLaunch:
    """One function of several kernels' buffers."""
    first, buffers = functions[0], [_buffers(kernel) for kernel in kernels]
    kinds = {name: kind for some in buffers for name, kind in zip(some, first.pointers, strict=True)}
    names = {name: f"p{k}" for k, name in enumerate(kinds)}
    # What all have in common is not chosen.
    pointers = [names[some[0]] if len({*some}) == 1 else f"q{k}" for k, some in enumerate(zip(*buffers, strict=True))]
    chosen = [k for k, pointer in enumerate(pointers) if pointer == f"q{k}"]
    rows = [[names[some[k]] for k in chosen] for some in buffers]
    targets = [pointers[k] for k in chosen]
    found = replace(first, name=f"{first.name}_and_{len(kernels) - 1}_more", pointers=tuple(kinds.values()))
    if shared.line is None:
        programs, body = [fixed(function.grid) for function in functions], first.body(pointers, "place")
    else:
        counts = _counts(kernels)
        form = form or line_config_by_rule(shared.line, counts)
        block = form.tile.elements
        found = replace(found, block=block, warps=form.warps)
        programs, body = [-(-count // block) for count in counts], _line_body(shared.line, block, pointers, counts)
        if len({*counts}) > 1:
            targets.append(ELEMENTS)
            rows = [[*row, str(count)] for row, count in zip(rows, counts, strict=True)]
    found = replace(found, grid=sum(programs))
    starts = [*accumulate(programs, initial=0)][:-1]
    helpers, choice = _choice([*targets, "place"], rows, starts)
    lines = [*helpers, found.head, f"    number = {PROGRAM}", *choice, *body]
    return TritonLaunch(
        replace(found, source="\n".join(lines) + "\n"), tuple(names), tuple(one.name for one in kernels)
    )


def line_config_by_rule(line: Kernel, counts: Sequence[int]) -> Config:
    """The configuration for lines of so many elements."""
    tile = Tile((Axis(LINE, min(LANE_BLOCK, covering(max(counts)))),))
    return Config(tile, warps_of(line, tile))


def _counts(kernels: Sequence[Kernel]) -> list[int]:
    return [kernel.points for kernel in kernels if isinstance(kernel.points, int)]


def _choice(
    targets: Sequence[str], rows: Sequence[Sequence[str]], starts: Sequence[int]
) -> tuple[list[str], list[str]]:
    """Functions, and lines that call them, to name what belongs to the program of that number: Note [Branches]."""
    leaves = [", ".join((*row, f"fs.since(number, {start})")) for row, start in zip(rows, starts, strict=True)]
    left = ", ".join(targets)
    helpers: list[str] = []
    if len(rows) > 2 * SEVERAL:
        calls = []
        for at in range(0, len(rows), SEVERAL):
            given = ", ".join(dict.fromkeys(name for row in rows[at : at + SEVERAL] for name in row if name[0] == "p"))
            calls.append(f"choose{at}(number, {given})")
            inner = _branches(left, leaves[at : at + SEVERAL], starts[at : at + SEVERAL], 1)
            helpers += ["@triton.jit", f"def choose{at}(number, {given}):", *inner, f"    return {left}", ""]
        leaves, starts = calls, starts[::SEVERAL]
    return helpers, _branches(left, leaves, starts, 1)


def _branches(left: str, leaves: Sequence[str], starts: Sequence[int], indent: int) -> list[str]:
    """Lines that assign the leaf of the program's number to the names on the left."""
    pad, half = "    " * indent, len(leaves) // 2
    if half == 0:
        return [f"{pad}{left} = {leaves[0]}"]
    return [
        f"{pad}if number < {starts[half]}:",
        *_branches(left, leaves[:half], starts[:half], indent + 1),
        f"{pad}else:",
        *_branches(left, leaves[half:], starts[half:], indent + 1),
    ]


def _line_body(line: Kernel, block: int, pointers: Sequence[str], counts: Sequence[int]) -> list[str]:
    """Lines for a block of each line; whole blocks have their own, without masks, where vectors may reach beyond."""
    size = counts[0] if len({*counts}) == 1 else LINE.size
    kinds = ["double" if isinstance(number, Number) else "integer" for number in line.numbers]
    head = [*(f"    m{k} = fs.{kind}(n{k})" for k, kind in enumerate(kinds)), "    pid = place"]
    if all(count % block == 0 for count in counts):
        return [*head, *_block(line, block, block, pointers, 1)[0]]
    if gcd(*counts) % SIZE_DIVISOR == 0 or max(counts) < block:
        return [*head, *_block(line, size, block, pointers, 1)[0]]
    whole, known = _block(line, block, block, pointers, 2)
    rest, _ = _block(line, size, block, pointers, 2, known)
    end = ELEMENTS if size is LINE.size else size
    return [*head, f"    if pid * {block} + {block} <= {end}:", *whole, "    else:", *rest]


def _block(
    line: Kernel, size: Size, block: int, pointers: Sequence[str], indent: int, known: int = 0
) -> tuple[list[str], int]:
    """Lines for a block of a line of that size, and how many names there are; `known` names are taken."""
    kernel = _over(line, size)
    tile = Tile((Axis(kernel.outer[0], block),))
    w = Writing(kernel, tile, [Scope([], indent)], "tl.int32", count=known)
    w.pointers.update(zip((param.name for param in line.params), pointers, strict=True))
    w.numbers.update({one: f"m{k}" for k, one in enumerate(line.numbers)})
    w.numbers.update(dict.fromkeys(symbols(LINE.size), ELEMENTS))
    write_program(w)
    return [*flat(w.scopes[0].lines)], w.count


def _over(line: Kernel, size: Size) -> Kernel:
    """The kernel of a line over one of that size."""
    var = Var(LINE.name, size)
    moved = rewrite_indices(line, lambda ix: index.substitute(ix, {LINE: index.of(var)}))
    return replace(moved, outer=(var,), lane=var)
