"""Kinds of slots that each operation requires and leaves: `apply_rule`.

CPython's interpreter trusts its compiler: it does not check that FOR_ITER finds an iterator or LIST_APPEND a list.
These rules check it. They are rows of tables; operations whose rule depends on the operand or on the slots have a
function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from framesmith_bytecode.analyses.slots import (
    ALIAS,
    ANY_CODE,
    ANY_FUNCTION,
    ANY_LIST,
    ANY_TUPLE,
    ANYTHING,
    CELL,
    CELLS,
    DICT,
    EMPTY,
    EXCEPTION,
    EXCEPTIONS,
    FUNCTION,
    GENERATOR_CODE,
    GENERATOR_FUNCTION,
    HANDLED,
    INDEX,
    INTERPOLATION,
    INTERPOLATIONS,
    ITERATOR,
    LIST,
    LOOPED,
    NO_INDEX,
    NONE,
    NULL,
    OBJECT,
    OFFSET,
    OPEN_FUNCTION,
    SET,
    TEXT,
    TEXTS,
    TUPLE,
    VALUE,
    Kind,
    NonObjectSlots,
    bits,
    in_words,
    number_of,
    numbered,
)
from framesmith_bytecode.cpython.opcodes import FUNCTION_ATTRIBUTES
from framesmith_bytecode.cpython.running import NULL_FIRST, TABLE
from framesmith_bytecode.model.ops import (
    FUNCTION_PARTS,
    INTRINSICS_1,
    OPS,
    CallShape,
    InterpolationShape,
    pops,
    pushes,
)

Kinds: TypeAlias = list[Kind]
# The slots that replace those an operation needs, bottom first.
Rule: TypeAlias = Callable[[Any, Kinds], Kinds]


class SlotError(Exception):
    """A slot may hold a kind that the operation does not accept; the message names the kind, not the instruction."""


_TWO: Final = TABLE.iterator_slots == 2
# op -> required kinds of the slots it pops, where not all are objects
TAKES: Final[Mapping[str, tuple[Kind, ...]]] = {
    **({"POP_ITER": (VALUE, EMPTY), "END_SEND": (VALUE, EMPTY, VALUE)} if _TWO else {"FOR_ITER": (ITERATOR,)}),
    "RERAISE": (EXCEPTION,),
    "PUSH_EXC_INFO": (EXCEPTION,),
    "POP_EXCEPT": (HANDLED,),
    "CHECK_EXC_MATCH": (HANDLED, VALUE),
    "CHECK_EG_MATCH": (HANDLED, VALUE),
    "PREP_RERAISE_STAR": (HANDLED, EXCEPTIONS),
    "CLEANUP_THROW": (VALUE, *((EMPTY,) if _TWO else ()), VALUE, EXCEPTION),
    "END_ASYNC_FOR": (VALUE, EXCEPTION),
    "LIST_TO_TUPLE": (ANY_LIST,),
    "MATCH_KEYS": (VALUE, ANY_TUPLE),
    "MATCH_CLASS": (VALUE, VALUE, ANY_TUPLE),
    "STORE_FAST": (ANYTHING,),
    **({"POP_TOP": (ANYTHING | EMPTY,)} if TABLE.exit_slots == 2 else {}),  # drops an exit and its self, or NULL
}
_EXIT: Final[tuple[Kind, ...]] = (OBJECT,) if TABLE.exit_slots == 1 else (OBJECT, NULL | OBJECT)
# op -> kinds that it pushes, where not all are objects
GIVES: Final[Mapping[str, tuple[Kind, ...]]] = {
    "PUSH_NULL": (NULL,),
    "LOAD_METHOD": (NULL | OBJECT, OBJECT) if NULL_FIRST else (OBJECT, NULL | OBJECT),
    "LOAD_SUPER_METHOD": (NULL | OBJECT, OBJECT) if NULL_FIRST else (OBJECT, NULL | OBJECT),
    "LOAD_CLOSURE": (CELL,),
    "LOAD_FAST_AND_CLEAR": (NULL | OBJECT,),
    **dict.fromkeys(("GET_ITER", "GET_YIELD_FROM_ITER") if _TWO else (), (LOOPED, INDEX)),
    **({} if _TWO else {"GET_ITER": (ITERATOR,)}),
    "PUSH_EXC_INFO": (HANDLED, EXCEPTION),
    "CHECK_EG_MATCH": (HANDLED, HANDLED),
    "PREP_RERAISE_STAR": (HANDLED,),
    "LIST_TO_TUPLE": (TUPLE,),
    "BUILD_SET": (SET,),
    "BUILD_MAP": (DICT,),
    **dict.fromkeys(("BEFORE_WITH", "BEFORE_ASYNC_WITH"), (*_EXIT, OBJECT)),
}
# op -> number of popped slots that it pushes back unchanged, lowest first
KEEPS: Final[Mapping[str, int]] = {
    "FOR_ITER": TABLE.iterator_slots,
    "GET_LEN": 1,
    "SEND": TABLE.iterator_slots,
    "IMPORT_FROM": 1,
    "GET_ANEXT": 1,
    "MATCH_MAPPING": 1,
    "MATCH_SEQUENCE": 1,
    "MATCH_KEYS": 2,
    "CHECK_EXC_MATCH": 1,
}
# Operations that cannot raise after they popped a slot.
CANNOT_RAISE: Final = frozenset(
    ("POP_TOP", "POP_ITER", "STORE_FAST", "STORE_DEREF", "POP_EXCEPT", "PUSH_EXC_INFO", "YIELD_VALUE", "RETURN_VALUE",
     "END_SEND", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE", "IS_OP")
)  # fmt: skip


def demand(found: Kind, wanted: Kind, what: str = "") -> None:
    """Raise `SlotError` unless all kinds that a slot can hold are accepted."""
    if bits(found) & ~wanted:
        if found & NULL and not wanted & NULL:
            raise SlotError(f"takes a NULL slot for {what or 'a value'}")
        raise SlotError(f"wants {what or in_words(wanted)}, there is {in_words(found)}")


def _copy(n: int, slots: Kinds) -> Kinds:
    demand(slots[0], VALUE | OPEN_FUNCTION)
    if slots[0] & LOOPED:
        return [*slots, _alone(slots[0])]
    if slots[0] & EXCEPTIONS:  # a change through one of two references would not change the other's kind
        slots[0] = LIST | slots[0] & ~EXCEPTIONS
    return [*slots, slots[0]]


def _alone(kind: Kind) -> Kind:
    """A slot that leaves its place: what a loop iterates over is an object anywhere else."""
    return kind & ~LOOPED | OBJECT if kind & LOOPED else kind


def _swap(n: int, slots: Kinds) -> Kinds:
    if (slots[0] | slots[-1]) & (INDEX | NO_INDEX):
        raise SlotError("would part an iterator from its index")
    slots[0], slots[-1] = _alone(slots[-1]), _alone(slots[0])
    return slots


def _for_iter(arg: object, slots: Kinds) -> Kinds:
    """A pair as GET_ITER or PUSH_NULL left it: the interpreter checks neither slot."""
    if slots[0] != LOOPED or bits(slots[1]) & ~(INDEX | NO_INDEX):
        raise SlotError(f"wants an iterator, there is {in_words(slots[0])} under {in_words(slots[1])}")
    return [*slots, OBJECT]


def _send(arg: object, slots: Kinds) -> Kinds:
    if slots[1] != NULL and not (slots[0] == LOOPED and not bits(slots[1]) & ~(INDEX | NO_INDEX)):
        raise SlotError(f"wants a receiver under NULL, there is {in_words(slots[0])} under {in_words(slots[1])}")
    demand(slots[0], VALUE)
    demand(slots[2], VALUE)
    return [slots[0], slots[1], OBJECT]


def _call(shape: CallShape, slots: Kinds) -> Kinds:
    first, second = slots[0], slots[1]
    if first == NULL and second == NULL:
        raise SlotError("both slots under the arguments are NULL")
    demand(second if NULL_FIRST else first, VALUE, "a callable")
    demand(first if NULL_FIRST else second, ANYTHING | NO_INDEX)
    for slot in slots[2:]:
        demand(slot, VALUE)
    return [ITERATOR if first == GENERATOR_FUNCTION and not NULL_FIRST else OBJECT]


def _call_function_ex(has_kwargs: bool, slots: Kinds) -> Kinds:
    first, second = slots[0], slots[1]
    if first == NULL and second == NULL:
        raise SlotError("both slots under the arguments are NULL")
    demand(second if NULL_FIRST else first, VALUE, "a callable")
    null = first if NULL_FIRST else second
    if null not in (NULL, NO_INDEX):
        raise SlotError(f"wants a NULL slot beside the callable, there is {in_words(null)}")
    demand(slots[2], VALUE)
    if has_kwargs:  # CPython 3.12 and later read it unchecked
        demand(slots[3], DICT, "a dict made here (as by BUILD_MAP 0, SWAP 2, DICT_MERGE 1)")
    return [OBJECT]


def _build_tuple(n: int, slots: Kinds) -> Kinds:
    for slot in slots:
        demand(slot, VALUE)
    if n and all(slot == CELL for slot in slots):
        return [numbered(CELLS, n)]
    if n == 3 and slots[0] == TEXT and not bits(slots[1]) & ~(ANY_TUPLE | NONE):
        return [ALIAS]
    if n and all(slot == INTERPOLATION for slot in slots):
        return [numbered(INTERPOLATIONS, n)]
    return [numbered(TUPLE, n)]


def _build_list(n: int, slots: Kinds) -> Kinds:
    for slot in slots:
        demand(slot, VALUE)
    return [LIST if n else EXCEPTIONS]


def _build_const_key_map(n: int, slots: Kinds) -> Kinds:
    for slot in slots:
        demand(slot, VALUE)
    if slots[-1] not in (numbered(TUPLE, n), numbered(TEXTS, n)):
        raise SlotError(f"wants a tuple of {n} keys, there is {in_words(slots[-1])}")
    return [DICT]


def _add_to(container: Kind, added: int, *, only_exceptions: bool = False) -> Rule:
    def rule(i: int, slots: Kinds) -> Kinds:
        demand(slots[0], container)
        for slot in slots[len(slots) - added :]:
            demand(slot, VALUE)
        if slots[0] & EXCEPTIONS and not (only_exceptions and not bits(slots[-1]) & ~HANDLED):
            slots[0] = LIST
        return slots[: len(slots) - added]

    return rule


def _dict_merge(i: int, slots: Kinds) -> Kinds:
    demand(slots[1 if NULL_FIRST else 0], VALUE, "a callable")
    demand(slots[3], DICT)
    demand(slots[-1], VALUE)
    return slots[:-1]


def _make_function(parts: frozenset[str], slots: Kinds) -> Kinds:
    demand(slots[-1], ANY_CODE)
    cells = number_of(slots[-1])
    if cells is None:
        raise SlotError("wants one code object, or several with as many free variables")
    given = [part for part in FUNCTION_PARTS if part in parts]
    for part, slot in zip(given, slots, strict=False):
        _check_part(part, slot, cells)
    if "closure" in parts or not cells:
        return [GENERATOR_FUNCTION if bits(slots[-1]) == GENERATOR_CODE else FUNCTION]
    if not FUNCTION_ATTRIBUTES:
        raise SlotError(f"makes a function without a closure of code with {cells} free variables")
    return [numbered(OPEN_FUNCTION, cells)]


def _check_part(part: str, slot: Kind, cells: int) -> None:
    if part == "closure":
        if slot != numbered(CELLS, cells):
            raise SlotError(f"wants a tuple of {cells} cells for the closure, there is {in_words(slot)}")
    elif part == "defaults":
        demand(slot, ANY_TUPLE)
    elif part == "kwdefaults":
        demand(slot, DICT)
    elif part == "annotate":
        demand(slot, VALUE)
    else:
        demand(slot, DICT | ANY_TUPLE)
        if slot & ANY_TUPLE and (number_of(slot) or 0) % 2 + (number_of(slot) is None):
            raise SlotError(f"wants a dict or a tuple of pairs for the annotations, there is {in_words(slot)}")


def _set_function_attribute(part: str, slots: Kinds) -> Kinds:
    demand(slots[1], ANY_FUNCTION | OPEN_FUNCTION)
    lacking = number_of(slots[1]) if slots[1] & OPEN_FUNCTION else 0
    if lacking is None or (slots[1] & OPEN_FUNCTION and slots[1] & ANY_FUNCTION):
        raise SlotError("wants one function, not sometimes one and sometimes another")
    _check_part(part, slots[0], lacking)
    return [FUNCTION if part == "closure" else slots[1]]


def _intrinsic_1(name: str, slots: Kinds) -> Kinds:
    wanted, given = _INTRINSICS_1.get(name, (VALUE, OBJECT))
    demand(slots[0], wanted)
    return [given]


def _intrinsic_2(name: str, slots: Kinds) -> Kinds:
    first, second, given = _INTRINSICS_2.get(name, (VALUE, VALUE, OBJECT))
    demand(slots[0], first)
    demand(slots[1], second)
    return [given]


_INTRINSICS_1: Final[Mapping[str, tuple[Kind, Kind]]] = {
    "STOPITERATION_ERROR": (EXCEPTION, EXCEPTION),
    "TYPEVAR": (TEXT, OBJECT),
    "PARAMSPEC": (TEXT, OBJECT),
    "TYPEVARTUPLE": (TEXT, OBJECT),
    "SUBSCRIPT_GENERIC": (ANY_TUPLE, OBJECT),
    "TYPEALIAS": (ALIAS, OBJECT),
}
assert set(_INTRINSICS_1) == set(INTRINSICS_1)
_INTRINSICS_2: Final[Mapping[str, tuple[Kind, Kind, Kind]]] = {
    "TYPEVAR_WITH_BOUND": (TEXT, VALUE, OBJECT),
    "TYPEVAR_WITH_CONSTRAINTS": (TEXT, VALUE, OBJECT),
    "SET_FUNCTION_TYPE_PARAMS": (ANY_FUNCTION, ANY_TUPLE, FUNCTION),
}
#: Operations that assume a string, or a tuple of strings.
TEXT_OPS: Final = frozenset(("BUILD_INTERPOLATION", "BUILD_TEMPLATE"))
# Intrinsics that assume a string, or an object made from one.
USES_STRINGS: Final = frozenset(
    name for name, row in {**_INTRINSICS_1, **_INTRINSICS_2}.items() if row[0] in (TEXT, ALIAS)
)


def _with_except_start(arg: None, slots: Kinds) -> Kinds:
    leave = (VALUE,) if TABLE.exit_slots == 1 else (VALUE, ANYTHING)
    for slot, wanted in zip(slots, (*leave, VALUE, HANDLED, EXCEPTION), strict=True):
        demand(slot, wanted)
    return [*slots, OBJECT]


def _build_interpolation(shape: InterpolationShape, slots: Kinds) -> Kinds:
    demand(slots[0], VALUE)
    demand(slots[1], TEXT)
    if shape.has_format:
        demand(slots[2], VALUE)
    return [INTERPOLATION]


def _build_template(arg: None, slots: Kinds) -> Kinds:
    """The interpreter reads the items of both tuples unchecked; there is one string more."""
    strings, fields = slots
    count = number_of(strings)
    if bits(strings) != TEXTS or count is None:
        raise SlotError(f"wants a constant tuple of strings, there is {in_words(strings)}")
    if fields != (numbered(INTERPOLATIONS, count - 1) if count > 1 else numbered(TUPLE, 0)):
        raise SlotError(f"wants a tuple of {count - 1} interpolations, there is {in_words(fields)}")
    return [OBJECT]


def _reraise(n: int, slots: Kinds) -> Kinds:
    if n:
        demand(slots[0], OFFSET)
    demand(slots[-1], EXCEPTION)
    return slots[:-1]


def _cleanup_throw(arg: None, slots: Kinds) -> Kinds:
    for slot, wanted in zip(slots, TAKES["CLEANUP_THROW"], strict=True):
        demand(slot, wanted)
    return [OBJECT, NULL, OBJECT] if _TWO else [OBJECT, OBJECT]


RULES: Final[Mapping[str, Rule]] = {
    "COPY": _copy,
    "SWAP": _swap,
    "CALL": _call,
    "CALL_FUNCTION_EX": _call_function_ex,
    "BUILD_TUPLE": _build_tuple,
    "BUILD_LIST": _build_list,
    "BUILD_CONST_KEY_MAP": _build_const_key_map,
    "LIST_APPEND": _add_to(ANY_LIST, 1, only_exceptions=True),
    "LIST_EXTEND": _add_to(ANY_LIST, 1),
    "SET_ADD": _add_to(SET, 1),
    "SET_UPDATE": _add_to(SET, 1),
    "MAP_ADD": _add_to(DICT, 2),
    "DICT_UPDATE": _add_to(DICT, 1),
    "DICT_MERGE": _dict_merge,
    "MAKE_FUNCTION": _make_function,
    "SET_FUNCTION_ATTRIBUTE": _set_function_attribute,
    "CALL_INTRINSIC_1": _intrinsic_1,
    "CALL_INTRINSIC_2": _intrinsic_2,
    "WITH_EXCEPT_START": _with_except_start,
    "RERAISE": _reraise,
    "CLEANUP_THROW": _cleanup_throw,
    "BUILD_INTERPOLATION": _build_interpolation,
    "BUILD_TEMPLATE": _build_template,
    **({"FOR_ITER": _for_iter, "SEND": _send} if _TWO else {}),
}


def apply_rule(op: str, arg: Any, slots: Kinds) -> Kinds:
    """The slots that an operation leaves in place of those it needs. Raises `SlotError`.

    `slots`: those that it peeks at and, above them, those that it pops, bottom first.
    """
    rule = RULES.get(op)
    if rule is not None:
        return rule(arg, slots)
    taken = len(slots) - pops(op, arg)
    wanted = TAKES.get(op)
    if wanted is None:
        for slot in slots[taken:]:
            if bits(slot) & ~VALUE:
                demand(slot, VALUE)
    else:
        for slot, kind in zip(slots[taken:], wanted, strict=True):
            demand(slot, kind)
    given = GIVES.get(op)
    if given is not None:
        return [*slots[:taken], *given]
    kept = KEEPS.get(op, 0)
    return [*slots[: taken + kept], *[OBJECT] * (pushes(op, arg) - kept)]


# Operations that take and leave objects only, whatever their operand.
ORDINARY: Final = frozenset(OPS) - set(TAKES) - set(GIVES) - set(KEEPS) - set(RULES)


# ---- the same, for common cases ----
#
# The most common of the other operations, where all slots are objects but for the NULL of a call, and none below
# `floor` is popped. Each returns the depth and the other slots afterwards, or None where the full rule is needed.

Quick: TypeAlias = Callable[[Any, int, NonObjectSlots, int], "tuple[int, NonObjectSlots] | None"]
_NULL_ABOVE: Final = 0 if NULL_FIRST else 1


def _quick_push_null(arg: None, depth: int, others: NonObjectSlots, floor: int) -> tuple[int, NonObjectSlots] | None:
    if _TWO and others is not None and others[0] == depth - 1 and others[1] == ITERATOR:
        return depth + 1, (depth, NO_INDEX, (depth - 1, LOOPED, others[2]))
    return depth + 1, (depth, NULL, others)


def _quick_load_method(arg: str, depth: int, others: NonObjectSlots, floor: int) -> tuple[int, NonObjectSlots] | None:
    base = depth - 1
    if base < floor or (others is not None and others[0] >= base):
        return None
    return depth + 1, (base + _NULL_ABOVE, NULL | OBJECT, others)


def _quick_call(shape: CallShape, depth: int, others: NonObjectSlots, floor: int) -> tuple[int, NonObjectSlots] | None:
    base = depth - shape[0] - 2
    if base < floor or others is None or others[0] != base + _NULL_ABOVE or not others[1] & NULL:
        return None
    below = others[2]
    return (base + 1, below) if below is None or below[0] < base else None


QUICK: Final[Mapping[str, Quick]] = {
    "PUSH_NULL": _quick_push_null,
    "LOAD_METHOD": _quick_load_method,
    "CALL": _quick_call,
}
