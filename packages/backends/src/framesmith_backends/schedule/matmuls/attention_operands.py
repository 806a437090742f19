"""Operands of attention and its gradients: their other readers, and the low-precision buffers they were cast from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from framesmith_backends.ir.dtypes import LOW_PRECISION
from framesmith_backends.ir.expr import Cast, Load, loads
from framesmith_backends.ir.program import BufferView, Program
from framesmith_backends.ir.symbolic import index
from framesmith_backends.schedule.fusion.group import Group, Node


def readers_of(program: Program, nodes: Sequence[Node]) -> Mapping[str, list[int]]:
    """Return for each buffer the numbers of the nodes that read it, through views as well; -1 for outputs."""
    found: dict[str, list[int]] = {}

    def read(name: str, number: int) -> None:
        place = program.views.get(name)
        found.setdefault(name if place is None else place.source, []).append(number)

    for node in nodes:
        if isinstance(node, Group):
            for name in {load.source for one in node.members for load in loads(one.body)}:
                read(name, node.number)
        elif node.call.name not in program.views:
            for name in node.call.needs:
                read(name, node.number)
    for output in program.outputs:
        if isinstance(output, str):
            read(output, -1)
    return found


@dataclass(slots=True)
class Half:
    """Reads operands in the low-precision type that they were cast from, for these `inside` nodes alone.

    `names` are casts that are not made, `unread` those among them whose elements are read where they lie.
    """

    program: Program
    readers: Mapping[str, list[int]]
    inside: Collection[int]
    stored: frozenset[str]
    names: set[str] = field(default_factory=set)
    unread: set[str] = field(default_factory=set)

    def kind(self, name: str) -> str | None:
        """The low-precision type that a definition casts to float32; None of others."""
        d = self.program.defs.get(name)
        if d is None or not {*self.readers.get(name, ())} <= {*self.inside}:
            return None
        if d.reduction is not None or d.updates is not None or name in self.program.outputs:
            return None
        body = d.body
        cast = isinstance(body, Cast) and body.dtype == "f32" and body.value.dtype in LOW_PRECISION
        return body.value.dtype if cast and isinstance(body, Cast) else None

    def view(self, place: BufferView) -> tuple[BufferView, str]:
        """Return the view that the operand is read from, and its dtype."""
        kind = self.kind(place.source)
        if kind is None:
            return place, self.program.layouts[place.source].dtype
        self.names.add(place.source)
        source = _lying(self.program, place.source, self.stored)
        if source is None:
            return place, kind
        self.unread.add(place.source)
        return replace(place, source=source), kind


def _lying(program: Program, name: str, stored: frozenset[str]) -> str | None:
    """The buffer whose elements the definition casts, if it lies in memory as they do."""
    d = program.defs[name]
    load = d.body.value if isinstance(d.body, Cast) else None
    if not isinstance(load, Load) or load.guard is not None or load.source not in program.layouts:
        return None
    layout = program.layouts[load.source]
    here = tuple(index.ZERO if axis is None else index.of(axis) for axis in d.axes)
    is_same = (layout.shape, layout.strides) == (d.layout.shape, d.layout.strides) and load.index == here
    return load.source if is_same and (load.source not in program.defs or load.source in stored) else None
