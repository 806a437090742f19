"""A listing of canonical instructions with labels, regions and source lines."""

from __future__ import annotations

import inspect
from typing import Final

from framesmith_bytecode.analyses.spans import BytecodeError
from framesmith_bytecode.analyses.walk import stack_states
from framesmith_bytecode.model.bytecode import Bytecode, Instr, Label, expect_bytecode
from framesmith_bytecode.model.ops import CallShape
from framesmith_bytecode.text.constant_text import constant_text

_ASYNC: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def label_names(bytecode: Bytecode) -> dict[Label, str]:
    """L1, L2, ... in order of index; adjacent labels share a name."""
    names: dict[Label, str] = {}
    previous: object = None
    count = 1
    for item in bytecode.instructions:
        if isinstance(item, Label):
            names[item] = names[previous] if isinstance(previous, Label) else f"L{count}"
            count += not isinstance(previous, Label)
        previous = item
    return names


def _operand(item: Instr, labels: dict[Label, str]) -> str:
    if item.arg is None and item.op != "LOAD_CONST":
        return ""
    if isinstance(item.arg, Label):
        return labels.get(item.arg, "(missing label)")
    if isinstance(item.arg, frozenset) and item.op == "MAKE_FUNCTION":
        return " ".join(sorted(item.arg))
    if isinstance(item.arg, CallShape):
        return f"{item.arg.argc}" + (f" with {', '.join(item.arg.kwnames)}" if item.arg.kwnames else "")
    return constant_text(item.arg) if item.op == "LOAD_CONST" else f"{item.arg}"


def signature(bytecode: Bytecode) -> str:
    """The parameters as they stand in a `def`, without defaults."""
    names = bytecode.argument_names
    positional, keyword = bytecode.argcount, bytecode.argcount + bytecode.kwonlyargcount
    rest = names[keyword:]
    shown = names[:positional]
    if bytecode.posonlyargcount:
        shown.insert(bytecode.posonlyargcount, "/")
    if bytecode.flags & inspect.CO_VARARGS:
        shown.append("*" + rest.pop(0))
    elif bytecode.kwonlyargcount:
        shown.append("*")
    return ", ".join([*shown, *names[positional:keyword], *["**" + name for name in rest]])


def headline(bytecode: Bytecode) -> str:
    """`def name(parameters)`, or the kind of code that is no function body."""
    name = bytecode.qualname or bytecode.name
    if not bytecode.flags & inspect.CO_NEWLOCALS:
        return f"body {name}"
    return f"{'async ' if bytecode.flags & _ASYNC else ''}def {name}({signature(bytecode)})"


def _header(bytecode: Bytecode) -> list[str]:
    lines = [headline(bytecode)]
    for what in ("varnames", "cellvars", "freevars"):
        names = getattr(bytecode, what)
        if names:
            lines.append(f"  {what}: {', '.join(names)}")
    return lines


def _depths(bytecode: Bytecode) -> list[int | None]:
    unknown: list[int | None] = [None] * len(bytecode.instructions)
    if not all(isinstance(item, Instr | Label) for item in bytecode.instructions):
        return unknown
    try:
        return stack_states(bytecode).before
    except BytecodeError:  # listings are most useful for unsound code
        return unknown


def _shown(index: int, item: object) -> str:
    return f"{'':>5} {index:>5} {'-':>3}  {'':<5}(neither an Instr nor a Label: {constant_text(item)})"


def format_bytecode(bytecode: Bytecode) -> str:
    """A listing of any `Bytecode`, sound or not: a head with the variables, the items, the regions.

    Columns: source line (where it changes), item index, stack depth before ("-": unreachable, or the function is
    unsound), label (adjacent labels share one), operation, operand. Then each region: from label, to label, handler,
    depth to which the stack is truncated, lasti. Raises `TypeError` for other values.
    """
    expect_bytecode(bytecode, "format_bytecode")
    labels = label_names(bytecode)
    lines = _header(bytecode)
    pending = ""
    line: int | None = None
    for index, (item, depth) in enumerate(zip(bytecode.instructions, _depths(bytecode), strict=True)):
        if isinstance(item, Label):
            pending = labels[item] + ":"
            continue
        if not isinstance(item, Instr):
            lines.append(_shown(index, item))
            continue
        shown = "" if item.lineno == line or item.lineno is None else str(item.lineno)
        line = item.lineno if item.lineno is not None else line
        at = "-" if depth is None else str(depth)
        lines.append(f"{shown:>5} {index:>5} {at:>3}  {pending:<5}{item.op:<24} {_operand(item, labels)}".rstrip())
        pending = ""
    if pending:
        lines.append(f"{'':>16}{pending}")
    for region in bytecode.regions:
        start, end, handler = (labels.get(label, "?") for label in (region.start, region.end, region.handler))
        depth_text = "start's" if region.depth is None else str(region.depth)
        lines.append(f"  {start} to {end} -> {handler}, depth {depth_text}{', lasti' if region.lasti else ''}")
    return "\n".join(lines)
