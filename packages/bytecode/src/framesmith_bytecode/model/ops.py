"""The canonical instruction set: one row per operation, the same on every supported CPython.

Analyses, verifier, printer and reference page read `OPS`; decoding and encoding translate between the opcodes of a
CPython version and these rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from framesmith_bytecode.cpython.running import TABLE
from framesmith_bytecode.cpython.version_table import VersionTable

Operand = Literal[
    "none", "const", "local", "deref", "name", "label", "count", "index", "bool", "choice",
    "call", "super", "unpack_ex", "function", "interpolation",
]  # fmt: skip
Flow = Literal["next", "jump", "branch", "return", "raise"]
Effect = int | Callable[[Any], int]


class CallShape(NamedTuple):
    """Arguments of a CALL: `argc` counts every argument, the last `len(kwnames)` of them are keywords."""

    argc: int
    kwnames: tuple[str, ...] = ()


class SuperShape(NamedTuple):
    """Operand of LOAD_SUPER_ATTR / LOAD_SUPER_METHOD: attribute, and whether `super` has explicit arguments."""

    name: str
    two_args: bool = False


class InterpolationShape(NamedTuple):
    """Operand of BUILD_INTERPOLATION: conversion (str, repr, ascii or none), and whether there is a format."""

    conversion: str = ""
    has_format: bool = False


@dataclass(frozen=True, slots=True)
class Op:
    """One canonical operation.

    `pops` and `pushes` count value-stack slots when control goes on to the next instruction; where they depend on
    the operand they are functions of it. `peeks`: number of slots read below those it pops. `jump_pushes`: number of
    slots that a taken branch pushes.
    """

    name: str
    operand: Operand
    pops: Effect
    pushes: Effect
    meaning: str
    flow: Flow = "next"
    jump_pushes: int = 0
    peeks: Effect = 0
    choices: tuple[str, ...] = ()
    since: str = ""


BINARY_OPERATORS = (
    "+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^",
    "+=", "&=", "//=", "<<=", "@=", "*=", "%=", "|=", "**=", ">>=", "-=", "/=", "^=",
)  # fmt: skip
COMPARISONS = ("<", "<=", "==", "!=", ">", ">=")
CONVERSIONS = ("str", "repr", "ascii")
INTRINSICS_1 = (
    "STOPITERATION_ERROR", "TYPEVAR", "PARAMSPEC", "TYPEVARTUPLE", "SUBSCRIPT_GENERIC", "TYPEALIAS",
)  # fmt: skip
INTRINSICS_2 = (
    "TYPEVAR_WITH_BOUND", "TYPEVAR_WITH_CONSTRAINTS", "SET_FUNCTION_TYPE_PARAMS", "SET_TYPEPARAM_DEFAULT",
)  # fmt: skip
FUNCTION_PARTS = ("defaults", "kwdefaults", "annotations", "annotate", "closure")


def _same(n: int) -> int:
    return n


_ROWS: Final = (
    # -- the value stack
    Op("NOP", "none", 0, 0, "Does nothing; keeps a source line alive for tracing."),
    Op("POP_TOP", "none", 1, 0, "Drops the top value."),
    Op("COPY", "count", 0, 1, "Pushes the n-th value from the top again (1 is the top).", peeks=_same),
    Op("SWAP", "count", 0, 0, "Exchanges the top with the n-th value from the top (2 is the next).", peeks=_same),
    Op("PUSH_NULL", "none", 0, 1, "Pushes NULL, the empty half of a call's two slots."),
    Op("LOAD_CONST", "const", 0, 1, "Pushes the operand itself."),
    # -- variables
    Op("LOAD_FAST", "local", 0, 1, "Pushes a local; UnboundLocalError if it is unbound (on 3.12+ encode writes the "
        "checking form wherever some path leaves it unbound)."),
    Op("LOAD_FAST_CHECK", "local", 0, 1, "As LOAD_FAST, in code where the compiler was not certain."),
    Op("LOAD_FAST_AND_CLEAR", "local", 0, 1, "Pushes the raw slot of a local (NULL when unbound, the cell itself "
        "for a cell variable) and leaves it unbound. Opens an inlined comprehension.", since="3.12"),
    Op("STORE_FAST", "local", 1, 0, "Pops into a local; of a cell variable it replaces the cell itself."),
    Op("DELETE_FAST", "local", 0, 0, "Unbinds a local; UnboundLocalError if it is unbound."),
    Op("MAKE_CELL", "deref", 0, 0, "Puts the slot's value into a fresh cell. Only inside inlined comprehensions; "
        "the cells of the function itself are made by its (hidden) prologue.", since="3.12"),
    Op("LOAD_DEREF", "deref", 0, 1, "Pushes the contents of a cell or free variable."),
    Op("STORE_DEREF", "deref", 1, 0, "Pops into a cell or free variable."),
    Op("DELETE_DEREF", "deref", 0, 0, "Empties a cell or free variable."),
    Op("LOAD_CLOSURE", "deref", 0, 1, "Pushes the cell itself."),
    Op("LOAD_FROM_DICT_OR_DEREF", "deref", 1, 1, "Pops a mapping; pushes its entry for the name, or the cell's "
        "contents. After LOAD_LOCALS this is what a class body does for an enclosing function's variable."),
    Op("LOAD_GLOBAL", "name", 0, 1, "Pushes a global or builtin. Never pushes NULL."),
    Op("STORE_GLOBAL", "name", 1, 0, "Pops into a global."),
    Op("DELETE_GLOBAL", "name", 0, 0, "Deletes a global."),
    Op("LOAD_NAME", "name", 0, 1, "Pushes a name found in locals, globals or builtins."),
    Op("STORE_NAME", "name", 1, 0, "Pops into the local namespace."),
    Op("DELETE_NAME", "name", 0, 0, "Deletes from the local namespace."),
    Op("LOAD_LOCALS", "none", 0, 1, "Pushes the local namespace of a class body (on 3.11 only directly before "
        "LOAD_FROM_DICT_OR_DEREF)."),
    Op("LOAD_FROM_DICT_OR_GLOBALS", "name", 1, 1, "Pops a mapping; pushes its entry for the name, or the global.",
        since="3.12"),
    # -- attributes and items
    Op("LOAD_ATTR", "name", 1, 1, "Pops an object, pushes its attribute."),
    Op("LOAD_METHOD", "name", 1, 2, "Pops an object; pushes (method, self), or the attribute and NULL in the "
        "order of the version: the two slots a CALL wants."),
    Op("LOAD_SUPER_ATTR", "super", 3, 1, "Pops (super, class, self), pushes the attribute of the super object.",
        since="3.12"),
    Op("LOAD_SUPER_METHOD", "super", 3, 2, "As LOAD_SUPER_ATTR, pushing two slots as LOAD_METHOD does.",
        since="3.12"),
    Op("STORE_ATTR", "name", 2, 0, "Pops (value, object); sets the attribute."),
    Op("DELETE_ATTR", "name", 1, 0, "Pops an object; deletes its attribute."),
    Op("BINARY_SUBSCR", "none", 2, 1, "Pops (container, key), pushes container[key]."),
    Op("STORE_SUBSCR", "none", 3, 0, "Pops (value, container, key); container[key] = value."),
    Op("DELETE_SUBSCR", "none", 2, 0, "Pops (container, key); del container[key]."),
    Op("BINARY_SLICE", "none", 3, 1, "Pops (container, start, stop), pushes container[start:stop]."),
    Op("STORE_SLICE", "none", 4, 0, "Pops (value, container, start, stop); container[start:stop] = value."),
    # -- operators
    Op("UNARY_POSITIVE", "none", 1, 1, "+x"),
    Op("UNARY_NEGATIVE", "none", 1, 1, "-x"),
    Op("UNARY_NOT", "none", 1, 1, "not x, of any x"),
    Op("UNARY_INVERT", "none", 1, 1, "~x"),
    Op("TO_BOOL", "none", 1, 1, "bool(x). Conditional jumps and UNARY_NOT test truth themselves; since "
        "3.13 the test is shown, and encode adds it where it is missing."),
    Op("BINARY_OP", "choice", 2, 1, "Pops (left, right), pushes the result of the operator.",
        choices=BINARY_OPERATORS),
    Op("COMPARE_OP", "choice", 2, 1, "Pops (left, right), pushes the comparison.", choices=COMPARISONS),
    Op("IS_OP", "bool", 2, 1, "left is right; with a true operand, is not."),
    Op("CONTAINS_OP", "bool", 2, 1, "left in right; with a true operand, not in."),
    # -- control flow
    Op("JUMP", "label", 0, 0, "Goes to the label.", flow="jump"),
    Op("JUMP_NO_INTERRUPT", "label", 0, 0, "Goes to the label without serving signals (await loops).",
        flow="jump"),
    Op("POP_JUMP_IF_FALSE", "label", 1, 0, "Pops; jumps if not true.", flow="branch"),
    Op("POP_JUMP_IF_TRUE", "label", 1, 0, "Pops; jumps if true.", flow="branch"),
    Op("POP_JUMP_IF_NONE", "label", 1, 0, "Pops; jumps if it is None.", flow="branch"),
    Op("POP_JUMP_IF_NOT_NONE", "label", 1, 0, "Pops; jumps if it is not None.", flow="branch"),
    Op("FOR_ITER", "label", 1, 2, "Pushes the iterator's next value above it; when exhausted "
        "pops the iterator and goes to the label.", flow="branch"),
    Op("RETURN_VALUE", "none", 1, 0, "Pops and returns.", flow="return"),
    Op("RAISE_VARARGS", "count", _same, 0, "Raises: 0 re-raises, 1 pops the exception, 2 pops (exception, cause).",
        flow="raise"),
    Op("RERAISE", "count", 1, 0, "Pops an exception and raises it again; n > 0 names the slot of the saved "
        "instruction offset (lasti) below it.", flow="raise", peeks=lambda n: n),
    # -- exceptions and context managers
    Op("PUSH_EXC_INFO", "none", 1, 2, "Pops an exception; pushes (previously handled exception, exception)."),
    Op("POP_EXCEPT", "none", 1, 0, "Pops and restores the previously handled exception."),
    Op("CHECK_EXC_MATCH", "none", 2, 2, "(exception, type) becomes (exception, bool)."),
    Op("CHECK_EG_MATCH", "none", 2, 2, "(exception, type) becomes (rest or None, match or None)."),
    Op("PREP_RERAISE_STAR", "none", 2, 1, "(original, exceptions) becomes what `except*` raises again, or None."),
    Op("BEFORE_WITH", "none", 1, 2, "Pops a context manager; pushes (exit, entered value). The "
        "exit takes two slots where a method and its self do: the exit, and its self or NULL."),
    Op("BEFORE_ASYNC_WITH", "none", 1, 2, "As BEFORE_WITH: (aexit, awaitable)."),
    Op("WITH_EXCEPT_START", "none", 0, 1, "(exit, lasti, previous, exception): pushes exit(type, value, tb).",
        peeks=4),
    Op("LOAD_ASSERTION_ERROR", "none", 0, 1, "Pushes AssertionError."),
    # -- iteration, generators, coroutines
    Op("GET_ITER", "none", 1, 1, "iter(x). An iterator takes two slots since 3.15: the second is NULL, or says "
        "how far the first, a list or a tuple, has been read. PUSH_NULL makes two slots of any iterator."),
    Op("POP_ITER", "none", 1, 0, "Drops a loop's iterator, where the compiler unrolls a call such as any(...)."),
    Op("GET_YIELD_FROM_ITER", "none", 1, 1, "The iterator `yield from` uses."),
    Op("RETURN_GENERATOR", "none", 0, 1, "Makes the generator of this frame and returns it; when resumed the "
        "sent value is on the stack."),
    Op("YIELD_VALUE", "index", 1, 1, "Pops and yields; pushes what is sent. The operand is the interpreter's own "
        "note (handler depth on 3.12, await since 3.13)."),
    Op("RESUME", "index", 0, 0, "Marks function start (0), after yield (1), yield from (2), await (3)."),
    Op("SEND", "label", 2, 2, "(receiver, value): sends; the yielded value replaces the value. "
        "When the receiver returns, goes to the label, an END_SEND, with (receiver, result).", flow="branch",
        jump_pushes=2),
    Op("END_SEND", "none", 2, 1, "(receiver, result) becomes (result)."),
    Op("CLEANUP_THROW", "none", 3, 2, "(receiver, value, exception): a StopIteration becomes "
        "(None, its value), anything else is raised.", since="3.12"),
    Op("GET_AWAITABLE", "index", 1, 1, "The iterator `await` uses; 1 and 2 say __aenter__ and __aexit__."),
    Op("GET_AITER", "none", 1, 1, "aiter(x)"),
    Op("GET_ANEXT", "none", 1, 2, "Pushes the awaitable of the asynchronous iterator's next value above it."),
    Op("END_ASYNC_FOR", "none", 2, 0, "(iterator, exception): swallows StopAsyncIteration, raises others."),
    Op("ASYNC_GEN_WRAP", "none", 1, 1, "Wraps a value an asynchronous generator is about to yield."),
    # -- containers
    Op("BUILD_TUPLE", "count", _same, 1, "Pops n values into a tuple."),
    Op("BUILD_LIST", "count", _same, 1, "Pops n values into a list."),
    Op("BUILD_SET", "count", _same, 1, "Pops n values into a set."),
    Op("BUILD_MAP", "count", lambda n: 2 * n, 1, "Pops n (key, value) pairs into a dict."),
    Op("BUILD_CONST_KEY_MAP", "count", lambda n: n + 1, 1, "Pops n values and a tuple of keys into a dict."),
    Op("BUILD_STRING", "count", _same, 1, "Pops n strings, pushes their concatenation."),
    Op("BUILD_SLICE", "count", _same, 1, "Pops 2 or 3 values into a slice."),
    Op("LIST_APPEND", "count", 1, 0, "Pops a value into the list i below.", peeks=_same),
    Op("SET_ADD", "count", 1, 0, "Pops a value into the set i below.", peeks=_same),
    Op("MAP_ADD", "count", 2, 0, "Pops (key, value) into the dict i below.", peeks=_same),
    Op("LIST_EXTEND", "count", 1, 0, "Pops an iterable into the list i below.", peeks=_same),
    Op("SET_UPDATE", "count", 1, 0, "Pops an iterable into the set i below.", peeks=_same),
    Op("DICT_UPDATE", "count", 1, 0, "Pops a mapping into the dict i below.", peeks=_same),
    Op("DICT_MERGE", "count", 1, 0, "As DICT_UPDATE, refusing duplicate keys (for messages the callable and its "
        "NULL lie under the positional tuple under the dict).",
        peeks=lambda i: i + 3),
    Op("LIST_TO_TUPLE", "none", 1, 1, "tuple(list)"),
    Op("UNPACK_SEQUENCE", "count", 1, _same, "Pops an iterable; pushes its n values, the first on top."),
    Op("UNPACK_EX", "unpack_ex", 1, lambda p: p[0] + p[1] + 1, "Unpacks around a starred target: "
        "(before, after) values and the list between."),
    # -- calls and functions
    Op("CALL", "call", lambda s: s.argc + 2, 1, "Pops the arguments and the two slots under them (callable and "
        "NULL in either order, or method and self); pushes the result."),
    Op("CALL_FUNCTION_EX", "bool", lambda k: 3 + k, 1, "Calls with an iterable, and a dict made here if the "
        "operand is true, over the same two slots, one of them NULL."),
    Op("MAKE_FUNCTION", "function", lambda parts: 1 + len(parts), 1, "Pops a code object and, under it, the parts "
        "named by the operand, pushed in the order defaults, kwdefaults, annotations, annotate, closure."),
    Op("SET_FUNCTION_ATTRIBUTE", "choice", 2, 1, "(value, function) becomes the function with that part set.",
        choices=FUNCTION_PARTS, since="3.13"),
    Op("LOAD_BUILD_CLASS", "none", 0, 1, "Pushes builtins.__build_class__."),
    Op("SETUP_ANNOTATIONS", "none", 0, 0, "Makes __annotations__ in the local namespace if it is missing."),
    Op("CALL_INTRINSIC_1", "choice", 1, 1, "Calls the named interpreter helper on one value.",
        choices=INTRINSICS_1, since="3.12"),
    Op("CALL_INTRINSIC_2", "choice", 2, 1, "Calls the named interpreter helper on two values.",
        choices=INTRINSICS_2, since="3.12"),
    Op("PRINT_EXPR", "none", 1, 1, "sys.displayhook of the value; pushes None."),
    # -- strings
    Op("CONVERT_VALUE", "choice", 1, 1, "str(x), repr(x) or ascii(x).", choices=CONVERSIONS),
    Op("FORMAT_SIMPLE", "none", 1, 1, "format(x, '')"),
    Op("FORMAT_WITH_SPEC", "none", 2, 1, "(value, spec) becomes format(value, spec)."),
    Op("BUILD_INTERPOLATION", "interpolation", lambda s: 2 + s.has_format, 1, "(value, text of the expression, "
        "format if there is one) becomes an interpolation of a template string.", since="3.14"),
    Op("BUILD_TEMPLATE", "none", 2, 1, "(tuple of strings, tuple of interpolations) becomes a template string.",
        since="3.14"),
    # -- imports
    Op("IMPORT_NAME", "name", 2, 1, "Pops (level, names), pushes the module."),
    Op("IMPORT_NAME_LAZY", "name", 2, 1, "As IMPORT_NAME; the module is imported when the name is first used.",
        since="3.15"),
    Op("IMPORT_NAME_MAYBE_LAZY", "name", 2, 1, "As IMPORT_NAME, or IMPORT_NAME_LAZY where an option says so."),
    Op("IMPORT_FROM", "name", 1, 2, "Pushes an attribute of the module, which stays."),
    Op("IMPORT_STAR", "none", 1, 1, "Copies the module's names into the local namespace; pushes None."),
    # -- pattern matching
    Op("GET_LEN", "none", 1, 2, "Pushes len(top), which stays."),
    Op("MATCH_MAPPING", "none", 1, 2, "Pushes whether the top is a mapping."),
    Op("MATCH_SEQUENCE", "none", 1, 2, "Pushes whether the top is a sequence."),
    Op("MATCH_KEYS", "none", 2, 3, "(subject, keys): pushes the tuple of values, or None."),
    Op("MATCH_CLASS", "count", 3, 1, "(subject, class, attribute names): pushes the tuple of attributes, or None; "
        "n positional patterns."),
)  # fmt: skip

# Operations on values that take more than one slot on some versions: the field of `VersionTable` with the number of
# slots, and the counts of the row to which the others are added.
_WIDER: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "BEFORE_WITH": ("exit_slots", ("pushes",)),
    "BEFORE_ASYNC_WITH": ("exit_slots", ("pushes",)),
    "WITH_EXCEPT_START": ("exit_slots", ("peeks",)),
    "GET_ITER": ("iterator_slots", ("pushes",)),
    "GET_YIELD_FROM_ITER": ("iterator_slots", ("pushes",)),
    "POP_ITER": ("iterator_slots", ("pops",)),
    "FOR_ITER": ("iterator_slots", ("pops", "pushes")),
    "SEND": ("iterator_slots", ("pops", "pushes", "jump_pushes")),
    "END_SEND": ("iterator_slots", ("pops",)),
    "CLEANUP_THROW": ("iterator_slots", ("pops", "pushes")),
}


def operations(table: VersionTable) -> dict[str, Op]:
    """The canonical operations, by name, with the stack effects that they have on one version."""
    rows = {row.name: row for row in _ROWS}
    for name, (slots, counts) in _WIDER.items():
        more = getattr(table, slots) - 1
        rows[name] = replace(rows[name], **{count: getattr(rows[name], count) + more for count in counts})
    return rows


OPS: Final[Mapping[str, Op]] = MappingProxyType(operations(TABLE))

_LEFT_OUT = "nothing: leave it out, encode puts it where it belongs"
_REGION = "a Region of the Bytecode"
_KEYWORD_CALL = "CALL with a CallShape(argc, kwnames)"

#: The canonical forms of CPython's operations that are not canonical (see "Never seen" in the README).
SPELT_HERE: Mapping[str, str] = MappingProxyType({
    **dict.fromkeys(("CACHE", "EXTENDED_ARG", "PRECALL", "COPY_FREE_VARS", "END_FOR", "INTERPRETER_EXIT", "RESERVED",
                     "ENTER_EXECUTOR", "TRACE_RECORD", "EXIT_INIT_CHECK", "POP_BLOCK", "NOT_TAKEN",
                     "ANNOTATIONS_PLACEHOLDER"), _LEFT_OUT),
    **dict.fromkeys(("SETUP_FINALLY", "SETUP_CLEANUP", "SETUP_WITH"), _REGION),
    **dict.fromkeys(("CALL_KW", "KW_NAMES"), _KEYWORD_CALL),
    **dict.fromkeys(("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE"), "JUMP"),
    "JUMP_BACKWARD_NO_INTERRUPT": "JUMP_NO_INTERRUPT",
    **{f"POP_JUMP_{way}_IF_{test}": f"POP_JUMP_IF_{test}"
       for way in ("FORWARD", "BACKWARD") for test in ("TRUE", "FALSE", "NONE", "NOT_NONE")},
    **{f"JUMP_IF_{test}": f"COPY 1, POP_JUMP_IF_{test}" for test in ("TRUE", "FALSE")},
    **{f"JUMP_IF_{test}_OR_POP": f"COPY 1, POP_JUMP_IF_{test}, POP_TOP" for test in ("TRUE", "FALSE")},
    "RETURN_CONST": "LOAD_CONST, RETURN_VALUE",
    "FORMAT_VALUE": "CONVERT_VALUE (if it converts), then FORMAT_SIMPLE or FORMAT_WITH_SPEC",
    "LOAD_CLASSDEREF": "LOAD_LOCALS, LOAD_FROM_DICT_OR_DEREF",
    "LOAD_ZERO_SUPER_ATTR": "LOAD_SUPER_ATTR with a SuperShape(name, two_args)",
    "LOAD_ZERO_SUPER_METHOD": "LOAD_SUPER_METHOD with a SuperShape(name, two_args)",
    "STORE_FAST_MAYBE_NULL": "STORE_FAST",
    "LOAD_FAST_BORROW": "LOAD_FAST",
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": "LOAD_FAST, LOAD_FAST",
    "LOAD_SMALL_INT": "LOAD_CONST",
    "LOAD_COMMON_CONSTANT": "LOAD_CONST, or LOAD_ASSERTION_ERROR",
    "LOAD_SPECIAL": "BEFORE_WITH or BEFORE_ASYNC_WITH for the pair of methods",
    **{f"{one}_FAST{between}{other}_FAST": f"{one}_FAST, {other}_FAST"
       for one, between, other in itertools.product(("LOAD", "STORE"), ("_", "__"), ("LOAD", "STORE"))},
})  # fmt: skip
#: COMPARE_OP of other bytecode tools and older interpreters.
OTHER_COMPARISONS: Mapping[str, str] = MappingProxyType({
    "is": "IS_OP False", "is not": "IS_OP True", "in": "CONTAINS_OP False", "not in": "CONTAINS_OP True",
    "exception match": "CHECK_EXC_MATCH",
})  # fmt: skip


def pops(op: str, arg: object) -> int:
    """Number of slots that one instruction pops. Raises KeyError for an unknown operation."""
    effect = OPS[op].pops
    return effect if isinstance(effect, int) else effect(arg)


def pushes(op: str, arg: object) -> int:
    """Number of slots that one instruction pushes if control goes on to the next one. Raises KeyError as `pops`."""
    effect = OPS[op].pushes
    return effect if isinstance(effect, int) else effect(arg)


def required_depth(op: str, arg: object) -> int:
    """Number of slots that the instruction needs on the stack: those that it pops or peeks at."""
    row = OPS[op]
    taken = row.pops if isinstance(row.pops, int) else row.pops(arg)
    peeked = row.peeks if isinstance(row.peeks, int) else row.peeks(arg)
    if row.name in ("COPY", "SWAP", "WITH_EXCEPT_START"):
        return peeked
    return taken + peeked
