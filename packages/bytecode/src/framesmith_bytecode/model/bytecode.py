"""The editable form of a code object: labels, instructions, exception regions, and their record."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, TypeAlias

from framesmith_bytecode.model.ops import (
    CONVERSIONS,
    FUNCTION_PARTS,
    OPS,
    OTHER_COMPARISONS,
    SPELT_HERE,
    CallShape,
    InterpolationShape,
    Op,
    Operand,
    SuperShape,
)


class Position(NamedTuple):
    """Source range of an instruction: lines from 1, columns in UTF-8 bytes from 0; None where unknown."""

    lineno: int | None = None
    end_lineno: int | None = None
    col_offset: int | None = None
    end_col_offset: int | None = None


class Label:
    """A target of jumps and a bound of regions in the instruction list; equal only to itself."""

    __slots__ = ("hint",)

    def __init__(self, hint: str = "") -> None:
        self.hint = hint

    def __repr__(self) -> str:
        return f"<Label {self.hint or hex(id(self))}>"


_GENERATOR_FLAGS: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
#: Upper bound of numbers that the interpreter stores in C ints.
INT_LIMIT = 1 << 31


def _is_count(arg: object) -> bool:
    return type(arg) is int and 0 <= arg < INT_LIMIT


def _is_name(arg: object) -> bool:
    return isinstance(arg, str)


def _is_call(arg: object) -> bool:
    if not isinstance(arg, CallShape):
        return False
    argc: Any = arg.argc
    kwnames: Any = arg.kwnames
    return _is_count(argc) and isinstance(kwnames, tuple) and len(kwnames) <= argc and all(map(_is_name, kwnames))


def _is_super(arg: object) -> bool:
    return isinstance(arg, SuperShape) and _is_name(arg.name) and type(arg.two_args) is bool


def _is_interpolation(arg: object) -> bool:
    known = ("", *CONVERSIONS)
    return isinstance(arg, InterpolationShape) and arg.conversion in known and type(arg.has_format) is bool


def _is_unpack_ex(arg: object) -> bool:
    return (
        isinstance(arg, tuple)
        and len(arg) == 2
        and all(map(_is_count, arg))
        and arg[0] < 256
        and arg[1] <= MOST_TARGETS
    )


def _is_function(arg: object) -> bool:
    return isinstance(arg, frozenset) and arg.issubset(OPS["SET_FUNCTION_ATTRIBUTE"].choices)


#: Most targets of one UNPACK_EX, which counts those after the list in the upper 24 bits.
MOST_TARGETS = (1 << 23) - 1

OPERAND_RULES: Mapping[Operand, tuple[Callable[[object], bool], str]] = {
    "none": (lambda arg: arg is None, "no operand"),
    "const": (lambda arg: True, "any value"),
    "local": (_is_name, "the name of a local variable"),
    "deref": (_is_name, "the name of a cell or free variable"),
    "name": (_is_name, "a name"),
    "label": (lambda arg: isinstance(arg, Label), "a Label"),
    "count": (_is_count, "a non-negative int"),
    "index": (lambda arg: arg is None or _is_count(arg), "a non-negative int or None"),
    "bool": (lambda arg: isinstance(arg, bool), "a bool"),
    "choice": (_is_name, "one of the operation's choices"),
    "call": (_is_call, "a CallShape(argc, kwnames) with no more names than arguments"),
    "super": (_is_super, "a SuperShape(name, two_args)"),
    "unpack_ex": (_is_unpack_ex, "a pair (before, after) of non-negative ints, before < 256"),
    "function": (_is_function, f"a frozenset of {', '.join(FUNCTION_PARTS)}"),
    "interpolation": (_is_interpolation, "an InterpolationShape(conversion, has_format)"),
}

# Least operand of the counting operations, if not 0, and the greatest, if any.
COUNT_LIMITS: Mapping[str, tuple[int, int | None]] = {
    "COPY": (1, None),
    "SWAP": (2, None),
    "BUILD_SLICE": (2, 3),
    "RAISE_VARARGS": (0, 2),
    "LIST_APPEND": (1, None),
    "SET_ADD": (1, None),
    "MAP_ADD": (1, None),
    "LIST_EXTEND": (1, None),
    "SET_UPDATE": (1, None),
    "DICT_UPDATE": (1, None),
    "DICT_MERGE": (1, None),
    "GET_AWAITABLE": (0, 2),
    "RESUME": (0, 15),
}


def why_not_instruction(op: str, arg: object) -> str | None:
    """The problem of the pair as an instruction, or None."""
    named: object = op
    row = OPS.get(op) if isinstance(named, str) else None
    if row is None:
        return _why_not_operation(op)
    accepts, wanted = OPERAND_RULES[row.operand]
    if not accepts(arg):
        choices = f"one of {', '.join(map(repr, row.choices))}" if row.choices else wanted
        return f"{op} takes {choices}, not {arg!r:.80}"
    return _why_not_value(row, arg)


def _why_not_operation(op: object) -> str:
    if not isinstance(op, str):
        return f"unknown operation {op!r:.80}: an operation is a str, a key of OPS such as 'LOAD_FAST'"
    name = op.upper().removeprefix("INSTRUMENTED_")
    if name in SPELT_HERE:
        return f"unknown operation {op!r}; here it is spelt {SPELT_HERE[name]}"
    near = get_close_matches(name, OPS, 1)
    return f"unknown operation {op!r}" + (f"; did you mean {near[0]!r}?" if near else "; OPS has them all")


def _why_not_value(row: Op, arg: Any) -> str | None:
    if row.choices and arg not in row.choices:
        if row.name == "COMPARE_OP" and arg in OTHER_COMPARISONS:
            return f"COMPARE_OP does not know {arg!r}; here it is spelt {OTHER_COMPARISONS[arg]}"
        near = get_close_matches(arg, row.choices, 1)
        choices = f"nearest is {near[0]!r}" if near else f"it takes one of {', '.join(map(repr, row.choices))}"
        return f"{row.name} does not know {arg!r}; {choices}"
    if row.name == "UNPACK_SEQUENCE" and arg > MOST_TARGETS:
        return f"{row.name} takes an int up to {MOST_TARGETS}, not {arg}"
    limits = COUNT_LIMITS.get(row.name)
    if limits is not None and isinstance(arg, int):
        least, greatest = limits
        if arg < least or (greatest is not None and arg > greatest):
            span = f"at least {least}" if greatest is None else f"from {least} to {greatest}"
            return f"{row.name} takes an int {span}, not {arg}"
    return None


def _is_position(position: object) -> bool:
    if not isinstance(position, tuple) or len(position) != 4:
        return False
    return all(value is None or _is_count(value) for value in position)


class _InstrFields(NamedTuple):
    op: str
    arg: Any
    position: Position | None


class Instr(_InstrFields):
    """One canonical instruction, checked when it is made, immutable, equal only to itself.

    `op` is a key of `OPS`; `arg` is of the kind in that row; `position` is its source range or None.
    """

    __slots__ = ()

    def __new__(cls, op: str, arg: object = None, position: Position | None = None) -> Instr:
        problem = why_not_instruction(op, arg)
        if problem is not None:
            raise ValueError(problem)
        if position is not None and not _is_position(position):
            wanted = "a Position (line, end line, column, end column) of non-negative ints or None"
            raise ValueError(f"{op} comes from {wanted}, not {position!r}")
        return tuple.__new__(cls, (op, arg, position))

    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__

    @property
    def lineno(self) -> int | None:
        """First source line, if known."""
        return None if self.position is None else self.position[0]

    def replace(self, **changes: Any) -> Instr:
        """A copy with some of `op`, `arg`, `position` changed."""
        return Instr(**{"op": self.op, "arg": self.arg, "position": self.position, **changes})

    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> Instr:  # type: ignore[override]
        return cls(*iterable)  # checked, as is `_replace`, which calls this

    def __repr__(self) -> str:
        return f"<{self.op}>" if self.arg is None else f"<{self.op} {self.arg!r}>"


@dataclass(slots=True)
class Region:
    """A region of the exception table: instructions from `start` up to `end`.

    An exception truncates the stack to `depth` slots, pushes the offset of the raising instruction if `lasti`, pushes
    the exception and continues at `handler`.

    Where regions overlap the inner one (the later start; of equal starts the earlier end; of equal regions the later in
    the list) is in force. `depth=None` means the stack depth at `start`.
    """

    start: Label
    end: Label
    handler: Label
    depth: int | None = None
    lasti: bool = False

    def __post_init__(self) -> None:
        problem = why_not_region(self)
        if problem is not None:
            raise ValueError(f"Region: {problem}")


def why_not_region(region: object) -> str | None:
    """The problem of a row of `Bytecode.regions`, or None."""
    if not isinstance(region, Region):
        return f"wants a Region, not {region!r:.80}"
    for part in ("start", "end", "handler"):
        if not isinstance(getattr(region, part), Label):
            return f"{part} must be a Label, not {getattr(region, part)!r:.80}"
    depth: object = region.depth
    lasti: object = region.lasti
    if depth is not None and not _is_count(depth):
        return f"depth must be a non-negative int or None, not {depth!r:.80}"
    return None if isinstance(lasti, bool) else f"lasti must be a bool, not {lasti!r:.80}"


Item: TypeAlias = Instr | Label


@dataclass(slots=True)
class Bytecode:
    """A code object in editable, canonical form.

    `varnames` begins with the arguments in frame order (positional, keyword-only, *args, **kwargs). `consts` and
    `names` keep their indices through `encode`, which appends others that the instructions need: the first constant
    of a function is its docstring slot. A free variable whose name is also a local's or a cell's is called
    `"x (free)"` here.
    """

    name: str
    instructions: list[Item] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    qualname: str = ""
    filename: str = "<generated>"
    firstlineno: int = 1
    argcount: int = 0
    posonlyargcount: int = 0
    kwonlyargcount: int = 0
    flags: int = 3
    varnames: list[str] = field(default_factory=list)
    cellvars: list[str] = field(default_factory=list)
    freevars: list[str] = field(default_factory=list)
    consts: tuple[object, ...] = (None,)
    names: tuple[str, ...] = ()

    @property
    def is_generator(self) -> bool:
        """Whether this is a generator, a coroutine or an asynchronous generator."""
        return bool(self.flags & _GENERATOR_FLAGS)

    @property
    def parameter_count(self) -> int:
        """The number of parameters, *args and **kwargs included."""
        variadic = (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS)
        return self.argcount + self.kwonlyargcount + sum(bool(self.flags & flag) for flag in variadic)

    @property
    def argument_names(self) -> list[str]:
        """All parameters in frame order, *args and **kwargs included."""
        return self.varnames[: self.parameter_count]


def expect_bytecode(value: object, taker: str, wanted: str = "a Bytecode") -> None:
    """Raise `TypeError`, with a hint, unless the value is a `Bytecode`."""
    if isinstance(value, Bytecode):
        return
    if hasattr(value, "__code__"):
        how = "a function's is decode(f.__code__)"
    elif hasattr(value, "bytecode"):
        how = "its is .bytecode()" if callable(value.bytecode) else "its is .bytecode"
    else:
        how = "decode(code) makes one"
    raise TypeError(f"{taker} takes {wanted}, not {type(value).__name__}; {how}")


def expect_index(index: object, items: Sequence[object], taker: str) -> None:
    """Raise `TypeError` unless the value is an int; the caller checks its range."""
    if not isinstance(index, int):
        raise TypeError(f"{taker} takes the index of an item, an int from 0 to {len(items) - 1}, not {index!r:.80}")


def expect_names(value: object, what: str, wanted: str = "a list of names") -> list[str]:
    """The names as a list; raises `TypeError` for other values, a single str included."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        names = list(value)
        if all(map(_is_name, names)):
            return names
    hint = f"; did you mean [{value!r}]?" if isinstance(value, str) else ""
    raise TypeError(f"{what} must be {wanted}, not {value!r:.80}{hint}")


FREE_MARK = " (free)"


def plain_name(name: str) -> str:
    """The Python name of a variable name used in operands (see `Bytecode` on free variables)."""
    return name.partition(FREE_MARK)[0]
