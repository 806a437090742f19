"""Shared kernels: of groups that differ in names alone one is built, the others run it on their own buffers."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from framesmith_backends.ir.canonical import Numbering, form_of
from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.ir.program import Program
from framesmith_backends.schedule.fusion.group import Group

Build = Callable[[str, Group], tuple[Kernel, ...]]


@dataclass(slots=True)
class SharedKernels:
    """Kernels of one program by the canonical form of their group.

    `build` returns kernels of a group, each with the given name or one that begins with it.
    """

    program: Program
    stored: frozenset[str]
    build: Build
    _built: dict[Hashable, tuple[str, list[str], tuple[Kernel, ...]]] = field(default_factory=dict)

    def kernels(self, name: str, group: Group) -> tuple[Kernel, ...]:
        number = Numbering()
        form = group_form(self.program, group, self.stored, number)
        if form is None:
            return self.build(name, group)
        found = self._built.get(form)
        if found is None:
            made = self.build(name, group)
            self._built[form] = name, [*number.numbers], made
            return made
        first, names, kernels = found
        own = dict(zip(names, number.numbers, strict=True))
        return tuple(kernel.called(name + kernel.name.removeprefix(first), own) for kernel in kernels)


def group_form(program: Program, group: Group, stored: frozenset[str], number: Numbering) -> Hashable | None:
    """Return all that a group's kernels depend on, with names numbered; None with indirect indices."""
    members = []
    for d in group.members:
        body = form_of((d.body,), number)
        if body is None:
            return None
        updates, buffer = (None if name is None else number(name) for name in (d.updates, d.buffer))
        loops = d.layout, d.domain, d.axes, d.reduction, d.reduced, d.scan, d.scanned, d.reverse
        members.append((number(d.name), d.name in stored, body, loops, d.failure, updates, buffer))
    own = {d.name for d in group.members}
    read = []
    for name, at in [*number.numbers.items()]:
        if name not in own:
            made = program.defs.get(name)
            written = None if made is None or made.buffer is None else number(made.buffer)
            layout = program.layouts.get(name)
            read.append((at, None if layout is None else layout.steps, written))
    return (*members, *read, group.sizes, group.reduced, group.down)
