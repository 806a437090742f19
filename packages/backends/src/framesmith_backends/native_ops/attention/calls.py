"""What functions of a module need to call each other."""

from __future__ import annotations

from framesmith_backends.render.llvm.builder import Value
from framesmith_backends.render.llvm.writer import Writer


def signature(names: tuple[str, ...]) -> str:
    return ", ".join(name.replace(" ", " %") for name in names)


def call(w: Writer, name: str, *given: Value) -> None:
    w.line(f"call void {name}({', '.join(one.typed for one in given)})")


def is_null(w: Writer, place: Value) -> Value:
    """Whether an address is that of nothing."""
    return w.compare("eq", w.emit(f"ptrtoint {place.typed} to i64", "i64"), 0)
