"""Code as text similar to Python: `format_python`."""

from __future__ import annotations

from typing import NamedTuple

from framesmith_bytecode.analyses.bound import possibly_unbound
from framesmith_bytecode.analyses.slots import EMPTY
from framesmith_bytecode.analyses.stack import StackStates
from framesmith_bytecode.analyses.walk import stack_states
from framesmith_bytecode.model.bytecode import Bytecode, Instr, Label, expect_bytecode
from framesmith_bytecode.model.ops import OPS
from framesmith_bytecode.text.expressions import NULL, Text
from framesmith_bytecode.text.pending import slot_name, slot_text
from framesmith_bytecode.text.printer import headline, label_names
from framesmith_bytecode.text.statements import Statements
from framesmith_bytecode.text.variables import Variables


class _Line(NamedTuple):
    """A statement and the index of the region it is in (None outside), or a label."""

    text: str
    region: int | None = None
    is_label: bool = False


class _MixedSlots(Exception):
    """A slot holds NULL on one path to a label, and the object of a method on another."""


class _Rendering:
    """One pass over the instructions; at labels, all slots that are not NULL have been written out into `$n`."""

    def __init__(self, bytecode: Bytecode, states: StackStates, *, methods_in_full: bool) -> None:
        self.bytecode = bytecode
        self.stack_states = states
        self.in_full = methods_in_full
        self.lines: list[_Line] = []
        self.region: int | None = None
        self.nulls: dict[int, frozenset[int]] = {}  # item of a label -> slots that hold NULL there in the rendering
        self.region_of = {index: span.key for span in states.spans for index in range(span.start, span.end)}
        self.names = label_names(bytecode)
        regions = [bytecode.regions[key] for key in states.regions]
        jumps = [item.arg for item in bytecode.instructions if isinstance(item, Instr) and isinstance(item.arg, Label)]
        self.targets = {*jumps, *[region.handler for region in regions]}
        self.writer = Statements(
            bytecode.instructions,
            Variables(bytecode),
            self.names,
            lambda text: self.lines.append(_Line(text, self.region)),
            self.leave,
            states.kinds,
            possibly_unbound(bytecode, states),
            methods_in_full=methods_in_full,
        )

    def run(self) -> list[_Line]:
        """All lines."""
        falls = True
        for index, item in enumerate(self.bytecode.instructions):
            depth = self.stack_states.before[index]
            if depth is None:
                falls = False
            elif isinstance(item, Label):
                self.arrive(index, item, depth, falls)
                falls = True
            else:
                self.protect(index, item.op)
                self.writer.instruction(index, item)
                falls = OPS[item.op].flow in ("next", "branch")
        return self.lines

    # ---- labels ----

    def arrive(self, index: int, label: Label, depth: int, falls: bool) -> None:
        """At a label: name the slots if another path leads here, or another region begins."""
        pending = self.writer.pending
        target = label in self.targets
        if falls and target:
            pending.name_all(depth)
            self.leave(label, depth)
        elif falls:
            pending.name_effects()
        if target or not falls:
            self.lines.append(_Line(self.names[label], is_label=True))
            pending.slots = self.slots_at(index, depth)

    def slots_at(self, index: int, depth: int) -> list[Text]:
        """The slots at a label: named, or NULL."""
        certain = frozenset(i for i, kind in enumerate(self.stack_states.kinds(index)) if not kind & ~EMPTY)
        nulls = self.nulls.setdefault(index, certain)
        return [NULL if i in nulls else slot_text(i) for i in range(depth)]

    def leave(self, label: Label, depth: int) -> None:
        """Add a path to a label with this many slots: all paths must have NULL in the same ones."""
        index = self.stack_states.labels[label]
        slots = self.writer.pending.slots[:depth]
        nulls = frozenset(i for i, text in enumerate(slots) if text is NULL)
        if self.in_full:  # only slots that are NULL on every path
            kinds = self.stack_states.kinds(index)
            for i in sorted(nulls):
                if kinds[i] & ~EMPTY:
                    self.writer.say(f"{slot_name(i)} = NULL")
        elif self.nulls.setdefault(index, nulls) != nulls:
            raise _MixedSlots

    def protect(self, index: int, op: str) -> None:
        """Before an instruction in a region: name the lowest slots, which its handler uses."""
        region = self.region = self.region_of.get(index)
        floor = 0 if region is None else self.stack_states.regions.get(region, 0)
        if region is not None and floor:
            self.writer.pending.name_all(floor)
            self.leave(self.bytecode.regions[region].handler, floor)
        if op == "JUMP_NO_INTERRUPT":  # cannot raise; loops of `await` are clearer without a `try` around it
            self.writer.pending.name_effects()
            self.region = None

    # ---- regions ----

    def ending(self, key: int) -> str:
        """The end of a region: the target of exceptions, and the slots that they push."""
        region = self.bytecode.regions[key]
        floor = self.stack_states.regions[key]
        slot = slot_name(floor + region.lasti)
        pushed = f"{slot_name(floor)}, {slot} = offset, exception" if region.lasti else f"{slot} = exception"
        return f"except: {pushed}; goto {self.names[region.handler]}"

    def laid_out(self) -> list[str]:
        """The lines, with `try:` around those of a region."""
        out: list[str] = []
        labels: list[str] = []
        current: int | None = None
        for line in [*self.lines, None]:
            if line is not None and line.is_label:
                labels.append(f"  {line.text}:")
                continue
            region = None if line is None else line.region
            if current is not None and region != current:
                out.append("    " + self.ending(current))
            out += dict.fromkeys(labels)
            labels = []
            if region is not None and region != current:
                out.append("    try:")
            current = region
            if line is not None:
                out.append(("    " if region is None else "        ") + line.text)
        return out


def _rendering(bytecode: Bytecode, states: StackStates) -> _Rendering:
    try:
        rendering = _Rendering(bytecode, states, methods_in_full=False)
        rendering.run()
    except _MixedSlots:
        rendering = _Rendering(bytecode, states, methods_in_full=True)
        rendering.run()
    return rendering


def format_python(bytecode: Bytecode) -> str:
    """The function as statements with labels and gotos, for reading; it cannot be run.

    - `$n` is slot n of the value stack, counted from the bottom; it is used where an expression does not suffice.
    - Labels are those of `format_bytecode`. After `try:` ... `except: $0 = exception; goto L2`, an exception of a
      statement in between keeps slots below `$0` and continues at L2.
    - `x = next($0), or goto L3` is FOR_ITER; `send` with its `or goto` is SEND.
    - `iadd(a, b)` and the like are in-place operators, named as in the `operator` module; `f(x)` is a call; other names
      in lower case are operations (docs/bytecode/instructions.md) with the values they take and their operand.
    - `NULL` is an empty slot; `x = NULL` unbinds x. `cell(x)` is the cell of x. A global whose name is also a
      variable's reads `load_global('x')`, and is set as `globals()['x']`.

    Unreachable instructions are counted in the last line, not shown. Raises `BytecodeError` for unsound functions
    (`format_bytecode` lists any), `TypeError` for other values.
    """
    expect_bytecode(bytecode, "format_python")
    states = stack_states(bytecode)
    lines = [headline(bytecode) + ":", *_rendering(bytecode, states).laid_out()]
    dead = sum(
        isinstance(item, Instr) and depth is None
        for item, depth in zip(bytecode.instructions, states.before, strict=True)
    )
    if dead:
        lines.append(f"    # not shown: {dead} instruction{'s' if dead > 1 else ''} that no path leads to")
    return "\n".join(lines)
