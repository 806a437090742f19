"""A listing of canonical instructions for people: labels, regions, source lines."""

from __future__ import annotations

from types import CodeType

from framesmith_bytecode.model import Bytecode, Instr, Label
from framesmith_bytecode.stack import BytecodeError
from framesmith_bytecode.walk import stack_depths


def label_names(bytecode: Bytecode) -> dict[Label, str]:
    """L1, L2, ... in order of place; labels standing together share a name."""
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
    if isinstance(item.arg, CodeType):
        return f"<code {item.arg.co_qualname}>"
    if isinstance(item.arg, frozenset) and item.op == "MAKE_FUNCTION":
        return " ".join(sorted(item.arg))
    return f"{item.arg!r:.80}" if item.op == "LOAD_CONST" else f"{item.arg}"


def _header(bytecode: Bytecode) -> list[str]:
    lines = [f"{bytecode.qualname or bytecode.name}({', '.join(bytecode.argument_names)})"]
    for what in ("varnames", "cellvars", "freevars"):
        names = getattr(bytecode, what)
        if names:
            lines.append(f"  {what}: {', '.join(names)}")
    return lines


def _depths(bytecode: Bytecode) -> list[int | None]:
    try:
        return stack_depths(bytecode).before
    except BytecodeError:  # a listing is most wanted of code that is wrong
        return [None] * len(bytecode.instructions)


def format_bytecode(bytecode: Bytecode) -> str:
    """Columns: source line (where it changes), item index, stack depth before, label, operation, operand."""
    labels = label_names(bytecode)
    lines = _header(bytecode)
    pending = ""
    line: int | None = None
    for index, (item, depth) in enumerate(zip(bytecode.instructions, _depths(bytecode), strict=True)):
        if isinstance(item, Label):
            pending = labels[item] + ":"
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
