"""Names of variables in renderings: two variables never have the same one."""

from __future__ import annotations

from typing import Final

from framesmith_bytecode.model.bytecode import FREE_MARK, Bytecode, Instr, plain_name
from framesmith_bytecode.text.expressions import Text

_KINDS: Final = ("FAST", "DEREF", "GLOBAL", "NAME")
LOADS: Final = frozenset((*[f"LOAD_{kind}" for kind in _KINDS], "LOAD_FAST_CHECK", "LOAD_CLOSURE"))
STORES: Final = frozenset(f"STORE_{kind}" for kind in _KINDS)
DELETES: Final = frozenset(f"DELETE_{kind}" for kind in _KINDS)


class Variables:
    """The variables of one function.

    A global whose name is also a variable's reads `load_global('x')`, and is set as `globals()['x']`; a free variable
    whose name is also a local's is `free.x`, and the slot of a cell variable, which holds the cell, `slot(x)`.
    """

    def __init__(self, bytecode: Bytecode) -> None:
        self.cells = frozenset((*bytecode.cellvars, *bytecode.freevars))
        named = {item.arg for item in bytecode.instructions if isinstance(item, Instr) and item.op.endswith("_NAME")}
        self.slots = self.cells | frozenset(bytecode.varnames)
        self.hide_globals = self.slots | named

    def text(self, op: str, name: str) -> str:
        """The variable that an instruction reads or changes."""
        if op.endswith("_GLOBAL"):
            return f"globals()[{name!r}]" if name in self.hide_globals else name
        if op.endswith("_NAME"):
            return f"names[{name!r}]" if name in self.slots else name
        shown = f"free.{plain_name(name)}" if FREE_MARK in name else name
        return f"slot({shown})" if name in self.cells and not op.endswith("_DEREF") else shown

    def load(self, op: str, name: str, *, certain: bool) -> Text:
        """The text of a load; `certain`: a local that is bound, so that the load cannot raise."""
        text = self.text(op, name)
        if op == "LOAD_CLOSURE":
            return Text(text.replace("slot(", "cell(", 1), pure=True, reads=frozenset((text,)))
        if text.endswith("]"):  # which does not look up builtins nor raise NameError
            return Text(f"{op.lower()}({name!r})", reads=frozenset((text,)))
        return Text(text, pure=op == "LOAD_FAST" and certain, reads=frozenset((text,)))
