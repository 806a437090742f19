"""Generated code as text that reads like Python: `format_python`. For people; not meant to be run."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any, Final

from framesmith_bytecode.model import Bytecode, Instr, Label
from framesmith_bytecode.ops import OPS, pops, pushes
from framesmith_bytecode.printer import label_names
from framesmith_bytecode.walk import stack_depths

_NULL: Final = "NULL"
_METHOD: Final = "\0method "  # a LOAD_METHOD's two slots: this marker with the attribute, and the receiver's

Expression = Callable[[list[str], Any], str]


def _paren(text: str) -> str:
    return text if text.replace(".", "").replace("_", "").isalnum() or text[-1:] in ")]}" else f"({text})"


def _items(parts: list[str], opening: str, closing: str) -> str:
    return opening + ", ".join(parts) + closing


def _tuple(parts: list[str], arg: object) -> str:
    return f"({parts[0]},)" if len(parts) == 1 else _items(parts, "(", ")")


def _map(parts: list[str], arg: object) -> str:
    return _items([f"{key}: {value}" for key, value in zip(parts[::2], parts[1::2], strict=True)], "{", "}")


def _arguments(parts: list[str], kwnames: tuple[str, ...]) -> str:
    split = len(parts) - len(kwnames)
    named = [f"{name}={value}" for name, value in zip(kwnames, parts[split:], strict=True)]
    return ", ".join(parts[:split] + named)


def _callee(slots: list[str]) -> tuple[str, list[str]]:
    """The callable, and the receiver if it is an argument of its own."""
    first, second = slots
    for slot in slots:
        if slot.startswith(_METHOD):
            return slot.removeprefix(_METHOD), []
    if first == _NULL:
        return _paren(second), []
    return _paren(first), [] if second == _NULL else [second]


def _call(parts: list[str], shape: Any) -> str:
    callee, receiver = _callee(parts[:2])
    return f"{callee}({_arguments(receiver + parts[2:], shape.kwnames)})"


def _call_ex(parts: list[str], has_kwargs: bool) -> str:
    callee, receiver = _callee(parts[:2])
    stars = [f"*{parts[2]}"] + ([f"**{parts[3]}"] if has_kwargs else [])
    return f"{callee}({', '.join(receiver + stars)})"


def _function(parts: list[str], arg: frozenset[str]) -> str:
    extra = [f"{name}={value}" for name, value in zip(sorted(arg), parts, strict=False)]
    return f"function({', '.join([parts[-1], *extra])})"


_EXPRESSIONS: Final[dict[str, Expression]] = {
    "LOAD_CONST": lambda p, arg: f"<code {arg.co_name}>" if isinstance(arg, CodeType) else f"{arg!r:.60}",
    "PUSH_NULL": lambda p, arg: _NULL,
    "LOAD_CLOSURE": lambda p, arg: f"cell({arg})",
    "LOAD_ATTR": lambda p, arg: f"{_paren(p[0])}.{arg}",
    "BINARY_SUBSCR": lambda p, arg: f"{_paren(p[0])}[{p[1]}]",
    "BINARY_SLICE": lambda p, arg: f"{_paren(p[0])}[{p[1]}:{p[2]}]",
    "BINARY_OP": lambda p, arg: f"{_paren(p[0])} {arg.rstrip('=')} {_paren(p[1])}",
    "COMPARE_OP": lambda p, arg: f"{_paren(p[0])} {arg} {_paren(p[1])}",
    "IS_OP": lambda p, arg: f"{_paren(p[0])} is {'not ' if arg else ''}{_paren(p[1])}",
    "CONTAINS_OP": lambda p, arg: f"{_paren(p[0])} {'not ' if arg else ''}in {_paren(p[1])}",
    "UNARY_NOT": lambda p, arg: f"not {_paren(p[0])}",
    "UNARY_NEGATIVE": lambda p, arg: f"-{_paren(p[0])}",
    "UNARY_POSITIVE": lambda p, arg: f"+{_paren(p[0])}",
    "UNARY_INVERT": lambda p, arg: f"~{_paren(p[0])}",
    "TO_BOOL": lambda p, arg: p[0],
    "GET_ITER": lambda p, arg: f"iter({p[0]})",
    "BUILD_TUPLE": _tuple,
    "BUILD_LIST": lambda p, arg: _items(p, "[", "]"),
    "BUILD_SET": lambda p, arg: _items(p, "{", "}"),
    "BUILD_MAP": _map,
    "BUILD_SLICE": lambda p, arg: _items(p, "slice(", ")"),
    "BUILD_STRING": lambda p, arg: " + ".join(p),
    "LIST_TO_TUPLE": lambda p, arg: f"tuple({p[0]})",
    "FORMAT_SIMPLE": lambda p, arg: f"format({p[0]})",
    "FORMAT_WITH_SPEC": lambda p, arg: f"format({p[0]}, {p[1]})",
    "CONVERT_VALUE": lambda p, arg: f"{arg}({p[0]})",
    "CALL": _call,
    "CALL_FUNCTION_EX": _call_ex,
    "MAKE_FUNCTION": _function,
    "IMPORT_NAME": lambda p, arg: f"import_({arg!r})",
}
_STATEMENTS: Final[dict[str, Expression]] = {
    "STORE_ATTR": lambda p, arg: f"{_paren(p[1])}.{arg} = {p[0]}",
    "DELETE_ATTR": lambda p, arg: f"del {_paren(p[0])}.{arg}",
    "STORE_SUBSCR": lambda p, arg: f"{_paren(p[1])}[{p[2]}] = {p[0]}",
    "DELETE_SUBSCR": lambda p, arg: f"del {_paren(p[0])}[{p[1]}]",
    "STORE_SLICE": lambda p, arg: f"{_paren(p[1])}[{p[2]}:{p[3]}] = {p[0]}",
    "RETURN_VALUE": lambda p, arg: f"return {p[0]}",
    "RAISE_VARARGS": lambda p, arg: " from ".join([f"raise {p[0]}", *p[1:]]) if p else "raise",
    "POP_JUMP_IF_TRUE": lambda p, arg: f"if {p[0]}: goto {arg}",
    "POP_JUMP_IF_FALSE": lambda p, arg: f"if not {_paren(p[0])}: goto {arg}",
    "POP_JUMP_IF_NONE": lambda p, arg: f"if {_paren(p[0])} is None: goto {arg}",
    "POP_JUMP_IF_NOT_NONE": lambda p, arg: f"if {_paren(p[0])} is not None: goto {arg}",
    "JUMP": lambda p, arg: f"goto {arg}",
}
_VARIABLES: Final = ("FAST", "FAST_CHECK", "DEREF", "GLOBAL", "NAME")
_LOADS: Final = frozenset(f"LOAD_{kind}" for kind in _VARIABLES)
_STORES: Final = frozenset(f"STORE_{kind}" for kind in _VARIABLES)
_DELETES: Final = frozenset(f"DELETE_{kind}" for kind in _VARIABLES)
_HIDDEN: Final = frozenset(("RESUME", "NOP"))


class _Renderer:
    def __init__(self, bytecode: Bytecode) -> None:
        self.labels = label_names(bytecode)
        self.lines: list[str] = []
        self.stack: list[str] = []
        self.plain: set[str] = {*bytecode.varnames, *bytecode.cellvars, *bytecode.freevars, _NULL}

    def say(self, text: str) -> None:
        self.lines.append("    " + text)

    def spill(self, keep: int = 0, *, names: bool = False) -> None:
        """Name every pending expression below the top `keep`, so that effects are shown in order.

        Names of variables stay as they are unless `names`. Of exchanged slots none is kept.
        """
        pending = [
            slot
            for slot, text in enumerate(self.stack)
            if text != f"${slot}" and (names or not (text in self.plain or text.startswith(_METHOD)))
        ]
        below = [slot for slot in pending if slot < len(self.stack) - keep]
        kept = " ".join(self.stack[len(self.stack) - keep :] if keep else [])
        self.name_slots(pending if any(f"${slot}" in kept for slot in below) else below)

    def name_slots(self, slots: list[int]) -> None:
        """Assign what these slots hold to their names; at once, where slots were exchanged."""
        texts = [self.stack[slot].replace(_METHOD, "method ") for slot in slots]
        targets = [f"${slot}" for slot in slots]
        if any("$" in text for text in texts):
            self.say(f"{', '.join(targets)} = {', '.join(texts)}")
        else:
            for target, text in zip(targets, texts, strict=True):
                self.say(f"{target} = {text}")
        for slot, target in zip(slots, targets, strict=True):
            self.stack[slot] = target

    def spill_variable(self, name: str) -> None:
        """Give the slots that hold a variable's value a name of their own before the variable changes."""
        self.name_slots([slot for slot, text in enumerate(self.stack) if text == name])

    def take(self, n: int) -> list[str]:
        taken = self.stack[len(self.stack) - n :] if n else []
        del self.stack[len(self.stack) - n :]
        return taken

    def instruction(self, item: Instr) -> None:
        op, arg = item.op, item.arg
        if op in _LOADS:
            self.plain.add(arg)
            self.stack.append(arg)
        elif op in _EXPRESSIONS:
            if "CALL" in op:
                self.spill(pops(op, arg))
            self.stack.append(_EXPRESSIONS[op](self.take(pops(op, arg)), arg))
        elif op == "LOAD_METHOD":
            (owner,) = self.take(1)
            self.stack += [f"{_METHOD}{_paren(owner)}.{arg}", owner]
        elif op == "COPY":
            self.spill(0)
            self.stack.append(self.stack[-arg])
        elif op == "SWAP":
            self.spill(0)
            self.stack[-1], self.stack[-arg] = self.stack[-arg], self.stack[-1]
        elif op not in _HIDDEN:
            self.statement(op, arg, item)

    def statement(self, op: str, arg: Any, item: Instr) -> None:
        taken_count = pops(op, arg)
        self.spill(taken_count)
        taken = self.take(taken_count)
        if op in _STORES or op in _DELETES:
            self.spill_variable(arg)
        shown = self.labels.get(arg, "?") if isinstance(arg, Label) else arg
        if op in _STORES:
            self.say(f"{arg} = {taken[0]}")
        elif op in _DELETES:
            self.say(f"del {arg}")
        elif op == "POP_TOP":
            if taken[0] not in self.plain and not taken[0].startswith("$"):
                self.say(taken[0])
        elif op in _STATEMENTS:
            self.say(_STATEMENTS[op](taken, shown))
        elif op == "FOR_ITER":
            self.say(f"${len(self.stack) + 1} = next({taken[0]}), or goto {shown}")
            self.stack += [taken[0], f"${len(self.stack) + 1}"]
        else:
            self.other(op, shown, taken, pushes(op, arg))

    def other(self, op: str, arg: object, taken: list[str], count: int) -> None:
        base = len(self.stack)
        results = [f"${base + i}" for i in range(count)]
        operands = ", ".join(taken + ([] if arg is None else [str(arg)]))
        self.say((", ".join(results) + " = " if results else "") + f"{op.lower()}({operands})")
        self.stack += results


def format_python(bytecode: Bytecode) -> str:
    """Statements with labels and gotos; `$n` is slot n of the value stack where an expression needed a name."""
    depths = stack_depths(bytecode)
    renderer = _Renderer(bytecode)
    starts = {region.start: region for region in bytecode.regions}
    ends = {region.end for region in bytecode.regions}
    for item, depth in zip(bytecode.instructions, depths.before, strict=True):
        if depth is None:
            continue
        if isinstance(item, Label):
            if len(renderer.stack) == depth:
                renderer.spill(names=True)
            renderer.stack = [f"${i}" for i in range(depth)]
            renderer.lines.append(f"  {renderer.labels[item]}:")
            if item in ends:
                renderer.say("# end of the protected part")
            if item in starts:
                renderer.say(f"# protected: an exception goes to {renderer.labels[starts[item].handler]}")
            continue
        if len(renderer.stack) != depth:
            renderer.stack = [f"${i}" for i in range(depth)]
        if OPS[item.op].flow in ("jump", "branch"):
            renderer.spill(pops(item.op, item.arg), names=True)
        renderer.instruction(item)
    signature = f"def {bytecode.name}({', '.join(bytecode.argument_names)}):"
    return "\n".join([signature, *renderer.lines])
