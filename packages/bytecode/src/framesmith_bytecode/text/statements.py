"""Canonical instructions as statements over pending texts: the lines of `format_python` between labels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from framesmith_bytecode.analyses.slot_rules import KEEPS
from framesmith_bytecode.analyses.slots import NULL as NULL_KIND
from framesmith_bytecode.analyses.slots import Kind
from framesmith_bytecode.cpython.running import NULL_FIRST, TABLE
from framesmith_bytecode.model.bytecode import Instr, Label
from framesmith_bytecode.model.ops import pops, pushes
from framesmith_bytecode.text.expressions import (
    COMPARE,
    EXPRESSIONS,
    NOT,
    NULL,
    Text,
    at_least,
    attribute,
    bounds,
    call,
    display,
    generic,
    keyword_arguments,
    primary,
    set_display,
    starred,
    super_attribute,
    unpacked_arguments,
)
from framesmith_bytecode.text.pending import Pending, slot_name, slot_text
from framesmith_bytecode.text.variables import DELETES, LOADS, STORES, Variables

# Texts of statements that only take values.
_SIMPLE: Final[Mapping[str, Callable[[list[Text], Any], str]]] = {
    "STORE_ATTR": lambda p, arg: _assignment(f"{primary(p[1])}.{arg}", p[0]),
    "DELETE_ATTR": lambda p, arg: f"del {primary(p[0])}.{arg}",
    "STORE_SUBSCR": lambda p, arg: _assignment(f"{primary(p[1])}[{p[2].text}]", p[0]),
    "DELETE_SUBSCR": lambda p, arg: f"del {primary(p[0])}[{p[1].text}]",
    "STORE_SLICE": lambda p, arg: _assignment(f"{primary(p[1])}[{bounds(p[2:])}]", p[0]),
    "RETURN_VALUE": lambda p, arg: f"return {p[0].text}",
    "RAISE_VARARGS": lambda p, arg: f"raise {' from '.join(part.text for part in p)}".rstrip(),
}
# Conditional jumps: the condition on which they jump.
_CONDITIONS: Final[Mapping[str, Callable[[Text], str]]] = {
    "POP_JUMP_IF_TRUE": lambda p: p.text,
    "POP_JUMP_IF_FALSE": lambda p: p.negated or f"not {at_least(p, NOT)}",
    "POP_JUMP_IF_NONE": lambda p: f"{at_least(p, COMPARE + 1)} is None",
    "POP_JUMP_IF_NOT_NONE": lambda p: f"{at_least(p, COMPARE + 1)} is not None",
}
# Additions to a container below: the statement, of the container and the values.
_ADDITIONS: Final[Mapping[str, Callable[[str, list[Text]], str]]] = {
    "LIST_APPEND": lambda target, p: f"{target}.append({p[0].text})",
    "LIST_EXTEND": lambda target, p: f"{target}.extend({p[0].text})",
    "SET_ADD": lambda target, p: f"{target}.add({p[0].text})",
    "SET_UPDATE": lambda target, p: f"{target}.update({p[0].text})",
    "MAP_ADD": lambda target, p: f"{target}[{p[0].text}] = {p[1].text}",
    "DICT_UPDATE": lambda target, p: f"{target}.update({p[0].text})",
    "DICT_MERGE": lambda target, p: f"dict_merge({target}, {p[0].text})",
}
_TRUTH_TESTS: Final = frozenset(("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "UNARY_NOT"))
_CONVERT_UNDER: Final = ["CONVERT_VALUE", "SWAP", "FORMAT_WITH_SPEC"]
_SILENT: Final = frozenset(("NOP", "RESUME"))


def _assignment(target: str, value: Text) -> str:
    change = value.inplace
    if change is not None and change.target == target:
        return f"{target} {change.operator} {change.value}"
    return f"{target} = {value.text}"


class Statements:
    """Writes statements.

    `items`: the instructions; `say`: writes a line; `leave`: called with each label that a jump leads to, after all
    slots have been named; `kinds`: what the slots hold before an item; `unbound`: the items that may find a local
    unbound; `methods_in_full`: give LOAD_METHOD its two slots.
    """

    def __init__(
        self,
        items: list[Instr | Label],
        variables: Variables,
        labels: Mapping[Label, str],
        say: Callable[[str], None],
        leave: Callable[[Label, int], None],
        kinds: Callable[[int], list[Kind]],
        unbound: Collection[int],
        *,
        methods_in_full: bool,
    ) -> None:
        self.items = items
        self.variables = variables
        self.labels = labels
        self.say = say
        self.leave = leave
        self.kinds = kinds
        self.unbound = unbound
        self.methods_in_full = methods_in_full
        self.pending = Pending(say)
        self.done: set[int] = set()  # instructions that were written with an earlier one

    def instruction(self, index: int, item: Instr) -> None:
        """Write one instruction, or keep it pending."""
        op, arg = item.op, item.arg
        if index in self.done or op in _SILENT:
            return
        special = _SPECIAL.get(op)
        if special is not None:
            special(self, index, op, arg)
        elif op in LOADS:
            self.pending.slots.append(self.variables.load(op, arg, certain=index not in self.unbound))
        elif op in STORES:
            self.store(op, arg)
        elif op in DELETES:
            self.delete(op, arg)
        elif op in EXPRESSIONS:
            self.pending.slots.append(EXPRESSIONS[op](self.pending.take(pops(op, arg)), arg))
        elif op in _SIMPLE:
            self.statement(pops(op, arg), _SIMPLE[op], arg)
        elif op in _CONDITIONS:
            self.conditional(op, arg)
        elif op in _ADDITIONS:
            self.add(index, op, arg)
        elif pushes(op, arg) - KEEPS.get(op, 0) == 1:
            self.expression(op, arg)
        else:
            self.other(index, op, arg)

    # ---- looking ahead ----

    def following(self, index: int, count: int = 1) -> list[int] | None:
        """Indices of the next instructions with an effect, if no label comes between."""
        found: list[int] = []
        while len(found) < count:
            index += 1
            item = self.items[index] if index < len(self.items) else None
            if not isinstance(item, Instr):
                return None
            if item.op not in _SILENT:
                found.append(index)
        return found

    def next_op(self, index: int) -> tuple[int, str]:
        """Index and name of the next instruction with an effect, -1 and "" if a label comes between."""
        found = self.following(index)
        if found is None:
            return -1, ""
        item = self.items[found[0]]
        assert isinstance(item, Instr)
        return found[0], item.op

    def stored_at_once(self, index: int, count: int = 1) -> list[str] | None:
        """The variables in which the next `count` instructions store the top values, if they do."""
        found = self.following(index, count)
        names = []
        for at in found or ():
            item = self.items[at]
            if not isinstance(item, Instr) or item.op not in STORES:
                return None
            names.append(self.variables.text(item.op, item.arg))
        if found is None:
            return None
        self.done.update(found)
        return names

    # ---- statements ----

    def statement(self, n: int, text: Callable[[list[Text], Any], str], arg: Any = None) -> None:
        """Write a statement of the top n."""
        self.pending.prepare(n)
        self.say(text(self.pending.take(n), arg))

    def results(self, index: int, n: int, count: int, text: Callable[[list[Text]], str], also: str = "") -> None:
        """Write an assignment of a value of the top n to `count` slots, or to the variable that stores the last.

        `also`: another variable that changes.
        """
        base = len(self.pending) - n
        targets = [slot_name(base + i) for i in range(count)]
        stored = self.stored_at_once(index) if count else None
        after, op = self.next_op(index)
        if stored:
            targets[-1:] = stored
        self.pending.prepare(n, [*targets, also])
        if not stored and count == 1 and op == "POP_TOP":
            self.done.add(after)
            targets = []
        made = text(self.pending.take(n))
        self.say(f"{', '.join(targets)} = {made}" if targets else made)
        kept = targets[:-1] if stored else targets
        self.pending.slots += [slot_text(base + i) for i in range(len(kept))]

    def store(self, op: str, name: str) -> None:
        target = self.variables.text(op, name)
        self.pending.prepare(1, (target,))
        self.say(_assignment(target, self.pending.take(1)[0]))

    def delete(self, op: str, name: str) -> None:
        target = self.variables.text(op, name)
        self.pending.prepare(0, (target,))
        self.say(f"del {target}")

    def pop_top(self, index: int, op: str, arg: None) -> None:
        self.pending.prepare(1)
        (text,) = self.pending.take(1)
        if not text.pure:
            self.say(text.text)

    def expression(self, op: str, arg: Any) -> None:
        """One value computed from the popped ones; other slots get names first."""
        taken, kept = pops(op, arg), KEEPS.get(op, 0)
        base = len(self.pending) - taken
        self.pending.name(i for i in range(base, base + kept) if not self.pending.slots[i].pure)
        parts = self.pending.take(taken)
        self.pending.slots += [*parts[:kept], generic(op, parts, arg)]

    def other(self, index: int, op: str, arg: Any) -> None:
        self.results(index, pops(op, arg), pushes(op, arg), lambda parts: generic(op, parts, arg).text)

    def take_variable(self, index: int, op: str, arg: str) -> None:
        """LOAD_FAST_AND_CLEAR, MAKE_CELL, which change a variable."""
        name = self.variables.text(op, arg)
        self.results(index, 0, pushes(op, arg), lambda parts: f"{op.lower()}({name})", name)

    def yield_value(self, index: int, op: str, arg: int | None) -> None:
        """The operand is a note for the interpreter."""
        self.results(index, 1, 1, lambda parts: f"yield {parts[0].text}")

    def reraise(self, index: int, op: str, arg: int) -> None:
        offset = f", offset={self.pending.slots[-1 - arg].text}" if arg else ""
        self.pending.prepare(1)
        self.say(f"reraise({self.pending.take(1)[0].text}{offset})")

    def with_except_start(self, index: int, op: str, arg: None) -> None:
        self.pending.name_effects()
        leave, *selves = self.pending.slots[-3 - TABLE.exit_slots : -3]
        exception = self.pending.slots[-1]
        callee, first = (Text("call"), (leave, *selves)) if selves and selves != [NULL] else (leave, ())
        arguments = (*(part.text for part in first), f"*exc_info({exception.text})")
        self.pending.slots.append(call(callee, arguments, [leave, *selves, exception]))

    def before_with(self, index: int, op: str, arg: None) -> None:
        """The exit, with its self as one text and NULL or, where the difference is visible, as two slots."""
        if TABLE.exit_slots == 1 or self.methods_in_full:
            self.other(index, op, arg)
            return
        base = len(self.pending) - 1
        stored = self.stored_at_once(index)
        targets = [slot_name(base), *(stored or [slot_name(base + 2)])]
        self.pending.prepare(1, targets)
        self.say(f"{', '.join(targets)} = {generic(op, self.pending.take(1), arg).text}")
        self.pending.slots += [slot_text(base), NULL, *([] if stored else [slot_text(base + 2)])]

    # ---- the stack ----

    def push_null(self, index: int, op: str, arg: None) -> None:
        self.pending.slots.append(NULL)

    def copy(self, index: int, op: str, arg: int) -> None:
        self.pending.copy(arg)

    def swap(self, index: int, op: str, arg: int) -> None:
        """Exchange; but 3.11 and 3.12 convert a formatted value when its format is on the stack already."""
        after = self.following(index, 3) if arg == 2 else None
        items = [self.items[at] for at in after or ()]
        if after and [item.op for item in items if isinstance(item, Instr)] == _CONVERT_UNDER:
            self.done.update(after[:2])
            value, spec = self.pending.take(2)
            convert = items[0]
            assert isinstance(convert, Instr)
            self.pending.slots += [EXPRESSIONS[convert.op]([value], convert.arg), spec]
        else:
            self.pending.swap(arg)

    def to_bool(self, index: int, op: str, arg: None) -> None:
        """Conversion to bool is implied by tests of truth."""
        if self.next_op(index)[1] not in _TRUTH_TESTS:
            self.pending.slots.append(EXPRESSIONS[op](self.pending.take(1), arg))

    def end_send(self, index: int, op: str, arg: None) -> None:
        """Drops the receiver, which is under the result."""
        taken = 1 + TABLE.iterator_slots
        if not self.pending.slots[-taken].pure:
            self.pending.name_effects()
        self.pending.slots.append(self.pending.take(taken)[-1])

    # ---- calls ----

    def load_method(self, index: int, op: str, arg: Any) -> None:
        """A method with its object, as one text and NULL or, where the difference is visible, as two slots."""
        n = pops(op, arg)
        if self.methods_in_full:
            self.results(index, n, 2, lambda parts: generic(op, parts, arg).text)
            return
        parts = self.pending.take(n)
        bound = attribute(parts, arg) if op == "LOAD_METHOD" else super_attribute(parts, arg)
        self.pending.slots += [NULL, bound] if NULL_FIRST else [bound, NULL]

    def call(self, index: int, op: str, arg: Any) -> None:
        n = pops(op, arg)
        base = len(self.pending) - n
        kinds = self.kinds(index)[base : base + 2]
        parts = self.pending.take(n)
        first, second, *rest = parts
        arguments = keyword_arguments(rest, arg.kwnames) if op == "CALL" else unpacked_arguments(rest)
        if first is NULL:
            made = call(second, arguments, parts)
        elif second is NULL:
            made = call(first, arguments, parts)
        elif any(kind & NULL_KIND for kind in kinds):
            made = call(Text("call"), (first.text, second.text, *arguments), parts)
        else:
            made = call(first, (second.text, *arguments), parts)
        self.pending.slots.append(made)

    # ---- containers ----

    def add(self, index: int, op: str, arg: int) -> None:
        """Add to a container: to its display if it is on top and has no name yet."""
        n = pops(op, arg)
        at = len(self.pending) - n - arg
        parts, below = self.pending.slots[-n:], self.pending.slots[at]
        merges = op == "DICT_MERGE" and self.next_op(index)[1] != "CALL_FUNCTION_EX"
        if arg == 1 and below.items is not None and not merges:
            self.pending.take(n + 1)
            self.pending.slots.append(_extended(op, below, parts))
            return
        self.pending.prepare(n)
        self.pending.name((at,))
        self.statement(n, lambda taken, _: _ADDITIONS[op](self.pending.slots[at].text, taken))

    def unpack(self, index: int, op: str, arg: Any) -> None:
        """`a, b = value`, or the slots in the order of the values."""
        count = pushes(op, arg)
        star = -1 if op == "UNPACK_SEQUENCE" else arg[0]
        base = len(self.pending) - 1
        stored = self.stored_at_once(index, count) if count else None
        targets = stored or [slot_name(base + i) for i in reversed(range(count))]
        shown = [f"*{target}" if i == star else target for i, target in enumerate(targets)]
        self.pending.prepare(1, targets)
        value = self.pending.take(1)[0].text
        self.say(f"{', '.join(shown) if count > 1 else f'({shown[0]},)' if count else '()'} = {value}")
        if stored is None:
            self.pending.slots += [slot_text(base + i) for i in range(count)]

    # ---- jumps ----

    def conditional(self, op: str, label: Label) -> None:
        below = len(self.pending) - 1
        self.pending.name_all(below)
        self.leave(label, below)
        self.say(f"if {_CONDITIONS[op](self.pending.take(1)[0])}: goto {self.labels[label]}")

    def jump(self, index: int, op: str, label: Label) -> None:
        self.pending.name_all(len(self.pending))
        self.leave(label, len(self.pending))
        self.say(f"goto {self.labels[label]}")

    def cleanup_throw(self, index: int, op: str, arg: None) -> None:
        if TABLE.iterator_slots == 1:
            self.other(index, op, arg)
            return
        base = len(self.pending) - pops(op, arg)
        targets = [slot_name(base), slot_name(base + 2)]
        self.pending.prepare(pops(op, arg), targets)
        self.say(f"{', '.join(targets)} = {generic(op, self.pending.take(pops(op, arg)), arg).text}")
        self.pending.slots += [slot_text(base), NULL, slot_text(base + 2)]

    def get_iter(self, index: int, op: str, arg: None) -> None:
        """An iterator as one text; a second slot shows as NULL."""
        parts = self.pending.take(1)
        made = EXPRESSIONS[op](parts, arg) if op in EXPRESSIONS else generic(op, parts, arg)
        self.pending.slots += [made, NULL][: TABLE.iterator_slots]

    def pop_iter(self, index: int, op: str, arg: None) -> None:
        self.pending.prepare(TABLE.iterator_slots)
        iterator = self.pending.take(TABLE.iterator_slots)[0]
        if not iterator.pure:
            self.say(iterator.text)

    def for_iter(self, index: int, op: str, label: Label) -> None:
        self.pending.name_all(len(self.pending))
        depth = len(self.pending)
        self.leave(label, depth - TABLE.iterator_slots)
        iterator = self.pending.slots[-TABLE.iterator_slots].text
        self.results(index, 0, 1, lambda parts: f"next({iterator}), or goto {self.labels[label]}")

    def send(self, index: int, op: str, label: Label) -> None:
        depth = len(self.pending)
        self.pending.name_all(depth - 1)
        self.leave(label, depth - 1)
        receiver, value = self.pending.slots[-1 - TABLE.iterator_slots].text, slot_name(depth - 1)
        self.pending.prepare(1, (value,))
        sent = self.pending.take(1)[0].text
        self.say(f"{value} = send({receiver}, {sent}), or goto {self.labels[label]} with {value} = result")
        self.pending.slots.append(slot_text(depth - 1))


def _extended(op: str, below: Text, parts: list[Text]) -> Text:
    """A display with more items."""
    assert below.items is not None
    everything = [below, *parts]
    if op in ("MAP_ADD", "DICT_UPDATE", "DICT_MERGE"):
        added = f"{parts[0].text}: {parts[1].text}" if op == "MAP_ADD" else f"**{at_least(parts[0], COMPARE + 1)}"
        return display("{", (*below.items, added), "}", everything)
    items = below.items + ((parts[0].text,) if op in ("LIST_APPEND", "SET_ADD") else starred(parts[0]))
    return display("[", items, "]", everything) if op.startswith("LIST") else set_display(items, everything)


_SPECIAL: Final[Mapping[str, Callable[[Statements, int, str, Any], None]]] = {
    "POP_TOP": Statements.pop_top,
    "PUSH_NULL": Statements.push_null,
    "COPY": Statements.copy,
    "SWAP": Statements.swap,
    "TO_BOOL": Statements.to_bool,
    "END_SEND": Statements.end_send,
    "LOAD_METHOD": Statements.load_method,
    "LOAD_SUPER_METHOD": Statements.load_method,
    "CALL": Statements.call,
    "CALL_FUNCTION_EX": Statements.call,
    "BEFORE_WITH": Statements.before_with,
    "BEFORE_ASYNC_WITH": Statements.before_with,
    "UNPACK_SEQUENCE": Statements.unpack,
    "UNPACK_EX": Statements.unpack,
    "LOAD_FAST_AND_CLEAR": Statements.take_variable,
    "MAKE_CELL": Statements.take_variable,
    "YIELD_VALUE": Statements.yield_value,
    "RERAISE": Statements.reraise,
    "WITH_EXCEPT_START": Statements.with_except_start,
    "JUMP": Statements.jump,
    "JUMP_NO_INTERRUPT": Statements.jump,
    "CLEANUP_THROW": Statements.cleanup_throw,
    "GET_ITER": Statements.get_iter,
    "GET_YIELD_FROM_ITER": Statements.get_iter,
    "POP_ITER": Statements.pop_iter,
    "FOR_ITER": Statements.for_iter,
    "SEND": Statements.send,
}
