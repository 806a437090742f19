"""Emission of canonical instructions without variables: operations, calls, the stack, protected blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from types import UnionType
from typing import Final, Literal, get_args

from framesmith_bytecode.cpython.running import TABLE
from framesmith_bytecode.model.bytecode import Instr, Item, Label, Position, Region, expect_names
from framesmith_bytecode.model.ops import CallShape

ContainerKind = Literal["tuple", "list", "set", "map", "string", "slice"]
Condition = Literal["true", "false", "none", "not_none"]
_CONTAINERS: Final = get_args(ContainerKind)
_CONDITIONS: Final = get_args(Condition)
_FRESH_DICTS: Final = frozenset(("BUILD_MAP", "BUILD_CONST_KEY_MAP"))


def expect(value: object, kind: type | UnionType, taker: str, wanted: str) -> None:
    """Raise `TypeError` unless the value is of the kind."""
    if not isinstance(value, kind):
        raise TypeError(f"{taker} takes {wanted}, not {value!r:.80}")


def expect_choice(value: object, choices: tuple[str, ...], taker: str) -> None:
    """Raise `ValueError`, with the nearest choice, unless the value is one of the choices."""
    if value not in choices:
        near = get_close_matches(str(value), choices, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{taker} takes one of {', '.join(map(repr, choices))}, not {value!r:.80}{hint}")


def expect_count(value: object, taker: str, least: int = 0) -> None:
    """Raise `ValueError` unless the value is an int of at least `least`."""
    if type(value) is not int or value < least:
        raise ValueError(f"{taker} takes an int, at least {least}, not {value!r:.80}")


def start_of(line: int) -> Position:
    """The position of a line without columns."""
    return Position(line, line, None, None)


class Emitter:
    """Collects instructions and regions; `position` is the source range of the next instructions."""

    def __init__(self, position: Position | None = None) -> None:
        self.instructions: list[Item] = []
        self.regions: list[Region] = []
        self.position = position

    # -- raw emission

    def emit(self, op: str, arg: object = None) -> None:
        """Append one instruction at the current position."""
        self.instructions.append(Instr(op, arg, self.position))

    def extend(self, items: Iterable[Item]) -> None:
        """Append ready instructions and labels."""
        added = list(items)
        for item in added:
            expect(item, Instr | Label, "extend", "instructions and labels")
        self.instructions.extend(added)

    def mark(self, label: Label) -> Label:
        """Define the label here."""
        expect(label, Label, "mark", "a Label")
        self.instructions.append(label)
        return label

    def jump(self, label: Label) -> None:
        """Go to the label."""
        self.emit("JUMP", label)

    def branch(self, label: Label, *, on: Condition) -> None:
        """Pop; go to the label on the condition."""
        expect_choice(on, _CONDITIONS, "branch's on=")
        self.emit(f"POP_JUMP_IF_{on.upper()}", label)

    @contextmanager
    def in_front(self) -> Iterator[None]:
        """Context manager: instructions emitted inside go before all others."""
        rest, self.instructions = self.instructions, []
        yield
        self.instructions += rest

    def load_const(self, value: object) -> None:
        """Push a constant: any object, held by the code object."""
        self.emit("LOAD_CONST", value)

    # -- attributes, items, containers

    def load_attr(self, name: str) -> None:
        """Pop an object, push its attribute."""
        self.emit("LOAD_ATTR", name)

    def store_attr(self, name: str) -> None:
        """Pop (value, object); set the attribute."""
        self.emit("STORE_ATTR", name)

    def delete_attr(self, name: str) -> None:
        """Pop an object; delete its attribute."""
        self.emit("DELETE_ATTR", name)

    def load_method(self, name: str) -> None:
        """Pop an object, push the two slots for `call_method`."""
        self.emit("LOAD_METHOD", name)

    def load_item(self, key: object = None, *, on_stack: bool = False) -> None:
        """Pop a container (and the key over it if `on_stack`), push the item."""
        if not on_stack:
            self.load_const(key)
        self.emit("BINARY_SUBSCR")

    def store_item(self, key: object = None, *, on_stack: bool = False) -> None:
        """Pop (value, container) (and the key over them if `on_stack`); container[key] = value."""
        if not on_stack:
            self.load_const(key)
        self.emit("STORE_SUBSCR")

    def delete_item(self, key: object = None, *, on_stack: bool = False) -> None:
        """Pop a container (and the key over it if `on_stack`); del container[key]."""
        if not on_stack:
            self.load_const(key)
        self.emit("DELETE_SUBSCR")

    def build(self, kind: ContainerKind, n: int) -> None:
        """Pop n values (n pairs for a map) into a container."""
        expect_choice(kind, _CONTAINERS, "build")
        self.emit(f"BUILD_{kind.upper()}", n)

    def unpack(self, n: int) -> None:
        """Pop a sequence, push its n values, the first on top."""
        self.emit("UNPACK_SEQUENCE", n)

    # -- the stack

    def pop(self, n: int = 1) -> None:
        """Drop the top n values."""
        expect_count(n, "pop")
        for _ in range(n):
            self.emit("POP_TOP")

    def dup(self) -> None:
        """Push the top once more."""
        self.emit("COPY", 1)

    def copy(self, n: int) -> None:
        """Push the n-th value from the top once more."""
        self.emit("COPY", n)

    def swap(self, n: int = 2) -> None:
        """Exchange the top with the n-th value from the top."""
        self.emit("SWAP", n)

    # -- calls

    def push_null(self) -> None:
        """Push NULL."""
        self.emit("PUSH_NULL")

    def push_callable(self, emit: Callable[[], object]) -> None:
        """Run `emit`, which must push one callable, and push NULL before or after it as this version needs."""
        if TABLE.null_first:
            self.push_null()
            emit()
        else:
            emit()
            self.push_null()

    def push_function(self, function: Callable[..., object]) -> None:
        """Push a function or class itself, with its NULL."""
        self.push_callable(lambda: self.load_const(function))

    def callable_on_stack(self) -> None:
        """Turn the callable on top into the two slots of a call."""
        self.push_null()
        if TABLE.null_first:
            self.swap(2)

    def call(self, argc: int, kwnames: Sequence[str] = ()) -> None:
        """Call with `argc` arguments, the last `len(kwnames)` of them keywords, over the two slots."""
        self.emit("CALL", CallShape(argc, tuple(expect_names(kwnames, "kwnames"))))

    def call_method(self, argc: int, kwnames: Sequence[str] = ()) -> None:
        """Call what `load_method` pushed."""
        self.call(argc, kwnames)

    def call_ex(self, has_kwargs: bool) -> None:
        """Call with an iterable of arguments and, if `has_kwargs`, a mapping on top of it.

        They lie over the two slots of `push_callable` or `callable_on_stack` (the call of what `load_method` pushed is
        `call_method`).
        """
        if has_kwargs is True:
            self._own_dict()
        self.emit("CALL_FUNCTION_EX", has_kwargs)

    def return_value(self) -> None:
        """Return the top."""
        self.emit("RETURN_VALUE")

    def raise_(self, argc: int = 1) -> None:
        """Raise: 1 pops the exception, 2 pops (exception, cause), 0 re-raises the handled one."""
        self.emit("RAISE_VARARGS", argc)

    def _own_dict(self) -> None:
        """Replace the mapping on top by a new dict of its items: CPython 3.12 and later read it unchecked."""
        last = self.instructions[-1] if self.instructions else None
        if not isinstance(last, Instr) or last.op not in _FRESH_DICTS:
            self.build("map", 0)
            self.swap(2)
            self.emit("DICT_MERGE", 1)

    # -- blocks

    def _expect_to_end(self, start: int, what: str) -> None:
        """Raise `ValueError` if instructions from item `start` on return or jump out.

        They would skip the exit of the context manager.
        """
        emitted = self.instructions[start:]
        inside = {item for item in emitted if isinstance(item, Label)}
        for item in emitted:
            if isinstance(item, Instr) and (
                item.op == "RETURN_VALUE" or (isinstance(item.arg, Label) and item.arg not in inside)
            ):
                raise ValueError(
                    f"the {what} must run to its end, and {item!r} leaves it: store what is to be returned, or where "
                    "to go, and return or jump after the block"
                )

    @contextmanager
    def protected(self, handler: Label, *, lasti: bool = False, depth: int | None = None) -> Iterator[None]:
        """Context manager: exceptions of instructions emitted inside go to `handler` (see `Region`)."""
        expect(handler, Label, "protected", "a Label")
        start = self.mark(Label())
        yield
        end = self.mark(Label())
        self.regions.append(Region(start, end, handler, depth, lasti))

    def _exit_with(self) -> None:
        """Call the exit function on top of the stack without an exception; drops it."""
        for _ in range(3):
            self.load_const(None)
        self.call(1 + TABLE.exit_slots)  # one slot: the first None is its self
        self.pop()

    def _reraise_cleanup(self, cleanup: Label) -> None:
        self.mark(cleanup)
        self.emit("COPY", 3)
        self.emit("POP_EXCEPT")
        self.emit("RERAISE", 1)
