"""Abstract values of value-stack slots: sets of kinds, the lattice of the verifier.

A `Kind` is a set of bits (joins are unions) and, for some, a number: how many free variables a code object has, how
many cells or items a tuple holds. `OBJECT` is any Python object and the kind of most slots, so a stack is represented
by its depth and a linked list of the slots of other kinds (`NonObjectSlots`), top first.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Mapping
from types import CodeType
from typing import Final, TypeAlias

from framesmith_bytecode.cpython.running import TABLE

Kind: TypeAlias = int
# (slot index, its kind, the others below) or None
NonObjectSlots: TypeAlias = "tuple[int, Kind, NonObjectSlots] | None"

NULL: Final = 1
OBJECT: Final = 1 << 1
ITERATOR: Final = 1 << 2
LIST: Final = 1 << 3
EXCEPTIONS: Final = 1 << 4  # a list of exceptions and None
SET: Final = 1 << 5
DICT: Final = 1 << 6
TUPLE: Final = 1 << 7  # numbered: its length
CODE: Final = 1 << 8  # numbered: its free variables
FUNCTION: Final = 1 << 9
OPEN_FUNCTION: Final = 1 << 10  # numbered: the cells that it lacks
EXCEPTION: Final = 1 << 11
NONE: Final = 1 << 12  # in place of an exception
OFFSET: Final = 1 << 13  # of the instruction that raised
CELL: Final = 1 << 14
CELLS: Final = 1 << 15  # a tuple of cells; numbered
TEXT: Final = 1 << 16
ALIAS: Final = 1 << 17  # the (name, type parameters, value) of a type alias
TEXTS: Final = 1 << 18  # a tuple of strings; numbered
INTERPOLATION: Final = 1 << 19
INTERPOLATIONS: Final = 1 << 20  # a tuple of interpolations; numbered
GENERATOR_CODE: Final = 1 << 21  # numbered: its free variables
GENERATOR_FUNCTION: Final = 1 << 22  # whose calls return iterators; the builtin iter is one, too
# The two slots of an iterator in a loop (3.15): a list or an iterator, and above it an index or NULL.
LOOPED: Final = 1 << 23
INDEX: Final = 1 << 24  # no object
NO_INDEX: Final = 1 << 25  # NULL

_NUMBER_SHIFT: Final = 32
_BITS: Final = (1 << _NUMBER_SHIFT) - 1

EMPTY: Final = NULL | INDEX | NO_INDEX
VALUE: Final = _BITS & ~(EMPTY | OPEN_FUNCTION)
ANYTHING: Final = VALUE | NULL
ANY_LIST: Final = LIST | EXCEPTIONS
HANDLED: Final = EXCEPTION | NONE
ANY_TUPLE: Final = TUPLE | TEXTS
ANY_CODE: Final = CODE | GENERATOR_CODE
ANY_FUNCTION: Final = FUNCTION | GENERATOR_FUNCTION

_WORDS: Final[Mapping[Kind, str]] = {
    NULL: "a NULL slot",
    OBJECT: "any object",
    ITERATOR: "an iterator",
    LIST: "a list",
    EXCEPTIONS: "a list of exceptions",
    SET: "a set",
    DICT: "a dict",
    TUPLE: "a tuple",
    CODE: "a code object",
    FUNCTION: "a function",
    OPEN_FUNCTION: "a function without its closure",
    EXCEPTION: "an exception",
    NONE: "None",
    OFFSET: "an instruction offset",
    CELL: "a cell",
    CELLS: "a tuple of cells",
    TEXT: "a string",
    ALIAS: "the parts of a type alias",
    TEXTS: "a tuple of strings",
    INTERPOLATION: "an interpolation",
    INTERPOLATIONS: "a tuple of interpolations",
    GENERATOR_CODE: "a generator's code object",
    GENERATOR_FUNCTION: "a generator function",
    LOOPED: "what a loop iterates over",
    INDEX: "an iterator's index",
    NO_INDEX: "an iterator's NULL",
}
_NUMBERED: Final[Mapping[Kind, str]] = {
    TUPLE: "a tuple of {}",
    CODE: "a code object with {} free variables",
    OPEN_FUNCTION: "a function that lacks {} cells",
    CELLS: "a tuple of {} cells",
    TEXTS: "a tuple of {} strings",
    INTERPOLATIONS: "a tuple of {} interpolations",
    GENERATOR_CODE: "a generator's code object with {} free variables",
}


def numbered(kind: Kind, number: int) -> Kind:
    """Return the kind with the number."""
    return kind | number + 1 << _NUMBER_SHIFT


def number_of(kind: Kind) -> int | None:
    """The number of a kind, None if it has none or differs between paths."""
    number = kind >> _NUMBER_SHIFT
    return number - 1 if number else None


def bits(kind: Kind) -> Kind:
    """The kind without its number."""
    return kind & _BITS


def join(left: Kind, right: Kind) -> Kind:
    """The join of two kinds; numbers that differ are dropped."""
    return left if left == right else (left | right) & _BITS


def in_words(kind: Kind) -> str:
    """A kind for messages."""
    number = number_of(kind)
    plain = bits(kind)
    if plain == VALUE:
        return "an object"
    if number is not None and plain in _NUMBERED:
        return _NUMBERED[plain].format(number)
    return " or ".join(word for bit, word in _WORDS.items() if plain & bit) or "nothing"


def constant_kind(value: object) -> Kind:
    """The kind of a constant."""
    if value.__class__ is tuple:
        assert isinstance(value, tuple)
        return numbered(TUPLE, len(value))
    if value is iter:
        return GENERATOR_FUNCTION
    if isinstance(value, CodeType):
        makes = value.co_flags & inspect.CO_GENERATOR
        return numbered(GENERATOR_CODE if makes else CODE, len(value.co_freevars))
    return OBJECT


# ---- lists of slots ----


def push(others: NonObjectSlots, index: int, kind: Kind) -> NonObjectSlots:
    """The list with one more slot on top."""
    return others if kind == OBJECT else (index, kind, others)


def cut(others: NonObjectSlots, depth: int) -> NonObjectSlots:
    """The list of the lowest `depth` slots."""
    while others is not None and others[0] >= depth:
        others = others[2]
    return others


def slots(others: NonObjectSlots, base: int, depth: int) -> list[Kind]:
    """Kinds of the slots from `base` up to `depth`, bottom first."""
    found = [OBJECT] * (depth - base)
    while others is not None and others[0] >= base:
        if others[0] < depth:
            found[others[0] - base] = others[1]
        others = others[2]
    return found


def push_all(others: NonObjectSlots, base: int, kinds: list[Kind]) -> NonObjectSlots:
    """The list with several more slots on top, bottom first; the first is slot `base`."""
    for index, kind in enumerate(kinds, base):
        if kind != OBJECT:
            others = (index, kind, others)
    return others


def join_slots(left: NonObjectSlots, right: NonObjectSlots) -> NonObjectSlots:
    """The join of two stacks of the same depth; `left` itself if the join equals it."""
    if left is right or left == right:
        return left
    mine, theirs = dict(_pairs(left)), dict(_pairs(right))
    joined: NonObjectSlots = None
    changed = False
    for index in sorted({*mine, *theirs}):
        kind = join(mine.get(index, OBJECT), theirs.get(index, OBJECT))
        changed |= kind != mine.get(index, OBJECT)
        joined = push(joined, index, kind)
    return joined if changed else left


def _pairs(others: NonObjectSlots) -> list[tuple[int, Kind]]:
    out = []
    while others is not None:
        out.append((others[0], others[1]))
        others = others[2]
    return out


# ---- variables with names of a kind ----
#
# Compilers pass such objects under names that no program can write: the first table has those of CPython.
# Continuations get their stack the same way, under names made by `carrier_name`.

_CPYTHON: Final[Mapping[str, Kind]] = {
    **({} if TABLE.generators_iterate else {".0": ITERATOR}),
    ".type_params": TUPLE,
    ".defaults": TUPLE,
    ".kwdefaults": DICT,
}
#: A set in which modules and classes with annotations inside conditions note those that were reached.
REACHED_ANNOTATIONS: Final = "__conditional_annotations__"
_CARRIED: Final[Mapping[str, Kind]] = {
    "iterator": ITERATOR,
    "list": LIST,
    "exceptions": EXCEPTIONS,
    "set": SET,
    "dict": DICT,
    "tuple": TUPLE,
    "code": CODE,
    "function": FUNCTION,
    "exception": EXCEPTION,
    "handled": HANDLED,
    "none": NONE,
    "offset": OFFSET,
    "cell": CELL,
    "cells": CELLS,
    "text": TEXT,
    "alias": ALIAS,
    "texts": TEXTS,
    "interpolation": INTERPOLATION,
    "interpolations": INTERPOLATIONS,
    "generatorcode": GENERATOR_CODE,
    "generatorfunction": GENERATOR_FUNCTION,
}
_CARRIER: Final = re.compile(r"\.([a-z]+)(\d*)_\d+")


def carrier_name(kind: Kind, slot: int, taken: Collection[str] = ()) -> str:
    """The name of a parameter for the value of stack slot `slot`, different from those in `taken`."""
    name = _carried_as(kind).format(slot)
    while name in taken:
        slot += 1
        name = _carried_as(kind).format(slot)
    return name


def _carried_as(kind: Kind) -> str:
    number, plain = number_of(kind), bits(kind)
    if plain == ANY_LIST:
        plain = LIST
    for name, carried in _CARRIED.items():
        if carried == plain:
            return f".{name}{'' if number is None else number}_{{}}"
    return "__stack_{}"


def variable_kind(name: str) -> Kind:
    """The kind of a variable by its name: OBJECT for all names that programs can write."""
    if name[:1] != ".":
        return OBJECT
    known = _CPYTHON.get(name)
    if known is not None:
        return known
    match = _CARRIER.fullmatch(name)
    kind = _CARRIED.get(match[1]) if match else None
    if match is None or kind is None:
        return OBJECT
    return numbered(kind, int(match[2])) if match[2] else kind
