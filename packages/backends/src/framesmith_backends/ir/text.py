"""Expressions as text. Parts used more than once get a name, so that the text grows with the expression."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from framesmith_backends.ir.expr import Cast, Expr, Load, Op, Recurrence, children, described, walk


def named_text(roots: Sequence[Expr], prefix: str = "t") -> tuple[list[str], list[str]]:
    """(lines that name the shared parts, the text of each root in terms of the names)."""
    names: dict[Expr, str] = {}
    lines: list[str] = []
    order = list(walk(*roots))
    uses = Counter(child for node in order for child in children(node))
    uses.update(roots)
    for part in order:
        if uses[part] < 2 or not isinstance(part, (Op, Cast)):
            continue
        text = _text(part, names)
        names[part] = f"{prefix}{len(names)}"
        lines.append(f"{names[part]} = {text}")
    return lines, [_text(root, names) for root in roots]


def _text(e: Expr, names: dict[Expr, str]) -> str:
    found = names.get(e)
    if found is not None:
        return found
    if isinstance(e, Op):
        return f"{e.name}({', '.join(_text(a, names) for a in e.args)})"
    if isinstance(e, Cast):
        return f"{e.dtype}({_text(e.value, names)})"
    if isinstance(e, Recurrence):
        starts, steps = (", ".join(_text(a, names) for a in part) for part in (e.starts, e.steps))
        return f"{described(e)} from ({starts}) by ({steps})"
    if isinstance(e, Load) and e.guard is not None:
        return f"{e.source}[{', '.join(map(repr, e.index))}] if {_text(e.guard, names)}"
    return repr(e)
