"""Expressions as text for `format_python`: one row per operation that only computes a value from those it pops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, Final, NamedTuple, TypeAlias

from framesmith_bytecode.model.ops import FUNCTION_PARTS, OPS, SuperShape
from framesmith_bytecode.text.constant_text import code_text, constant_text

# Precedence of a text; an operand of lower precedence than required goes into parentheses.
NOT, COMPARE, UNARY, POWER, NUMBER, ATOM = 1, 2, 9, 10, 11, 12
_BINARY: Final[Mapping[str, int]] = {
    "|": 3, "^": 4, "&": 5, "<<": 6, ">>": 6, "+": 7, "-": 7, "*": 8, "/": 8, "//": 8, "%": 8, "@": 8, "**": POWER,
}  # fmt: skip
_INPLACE: Final[Mapping[str, str]] = {
    "+=": "iadd", "&=": "iand", "//=": "ifloordiv", "<<=": "ilshift", "@=": "imatmul", "*=": "imul", "%=": "imod",
    "|=": "ior", "**=": "ipow", ">>=": "irshift", "-=": "isub", "/=": "itruediv", "^=": "ixor",
}  # fmt: skip


class InPlace(NamedTuple):
    """`target operator value` of an operation that may change its left operand."""

    target: str
    operator: str
    value: str


class Text(NamedTuple):
    """The text of a stack slot that was not written out yet.

    `pure`: may be written out later, twice or not at all (names of locals, constants, slots). `reads`: the variables
    and slots it mentions. `items`: the text between the brackets of a container that only this slot holds.
    `body`: a formatted string without its quotes. `converted`: value and conversion ("r", "s", "a") of a
    formatted string's field. `inplace`: the operands of an in-place operation. `negated`: the opposite of a bool.
    """

    text: str
    level: int = ATOM
    pure: bool = False
    reads: frozenset[str] = frozenset()
    items: tuple[str, ...] | None = None
    body: str | None = None
    converted: tuple[str, str] | None = None
    inplace: InPlace | None = None
    negated: str | None = None


Expression: TypeAlias = Callable[[list[Text], Any], Text]

NULL: Final = Text("NULL", pure=True)


def at_least(part: Text, level: int) -> str:
    """The text, in parentheses if its precedence is below `level`."""
    return part.text if part.level >= level else f"({part.text})"


def primary(part: Text) -> str:
    """The text before `.name`, `[key]` or `(arguments)`."""
    return at_least(part, ATOM)


def of(parts: list[Text], text: str, level: int = ATOM, **more: Any) -> Text:
    """A text that combines these parts."""
    return Text(text, level, reads=frozenset().union(*[part.reads for part in parts]), **more)


def _call_like(name: str) -> Expression:
    return lambda p, arg: of(p, f"{name}({', '.join(part.text for part in p)})")


# ---- constants and strings ----


def constant(parts: list[Text], value: object) -> Text:
    """A LOAD_CONST."""
    if isinstance(value, CodeType):
        return Text(code_text(value), pure=True)
    text = constant_text(value)
    level = UNARY if text[:1] == "-" else NUMBER if text[:1].isdigit() or isinstance(value, complex) else ATOM
    literal = repr(value)[1:-1] if type(value) is str and text[0] in "'\"" else None
    body = None if literal is None else literal.replace("{", "{{").replace("}", "}}")
    return Text(text, level, pure=True, body=body, items=_constant_items(value, text))


def _constant_items(value: object, text: str) -> tuple[str, ...] | None:
    if type(value) is not tuple or text[0] != "(":
        return None
    return tuple(constant_text(item) for item in value)


def _formatted(parts: list[Text], body: str) -> Text:
    quote = next((quote for quote in ("'", '"', "'''") if quote not in body), '"""')
    return of(parts, f"f{quote}{body}{quote}", body=body)


def _field(value: Text, spec: str = "") -> str:
    text, conversion = value.converted or (value.text, "")
    return f"{{{' ' if text[:1] == '{' else ''}{text}{'!' if conversion else ''}{conversion}{spec}}}"


def _format_with_spec(p: list[Text], arg: None) -> Text:
    spec = p[1].body
    return _formatted(p, _field(p[0], ":" + (spec if spec is not None else _field(p[1]))))


def _build_string(p: list[Text], n: int) -> Text:
    return _formatted(p, "".join(part.body if part.body is not None else _field(part) for part in p))


def _convert(p: list[Text], conversion: str) -> Text:
    return of(p, f"{conversion}({p[0].text})", converted=(p[0].text, conversion[0]))


# ---- operators ----


def _binary(p: list[Text], arg: str) -> Text:
    left, right = p
    if arg in _INPLACE:
        return of(p, f"{_INPLACE[arg]}({left.text}, {right.text})", inplace=InPlace(left.text, arg, right.text))
    level = _BINARY[arg]
    if arg == "**":
        return of(p, f"{at_least(left, NUMBER)} ** {at_least(right, UNARY)}", level)
    return of(p, f"{at_least(left, level)} {arg} {at_least(right, level + 1)}", level)


def _compare(p: list[Text], word: str) -> Text:
    return of(p, f"{at_least(p[0], COMPARE + 1)} {word} {at_least(p[1], COMPARE + 1)}", COMPARE)


def _test(word: str, opposite: str) -> Expression:
    """`is` and `in`, or with a true operand their opposites."""

    def text(p: list[Text], invert: bool) -> Text:
        one, other = _compare(p, word), _compare(p, opposite)
        return other._replace(negated=one.text) if invert else one._replace(negated=other.text)

    return text


def _prefix(word: str, level: int) -> Expression:
    return lambda p, arg: of(p, word + at_least(p[0], level), level)


# ---- containers ----


def display(opening: str, items: tuple[str, ...], closing: str, parts: list[Text]) -> Text:
    """A list, dict or tuple written out."""
    inside = ", ".join(items) + ("," if opening == "(" and len(items) == 1 else "")
    return of(parts, opening + inside + closing, items=items)


def _texts(p: list[Text]) -> tuple[str, ...]:
    return tuple(part.text for part in p)


def _build_set(p: list[Text], n: int) -> Text:
    return set_display(_texts(p), p)


def set_display(items: tuple[str, ...], parts: list[Text]) -> Text:
    """A set written out; an empty one has no display."""
    return of(parts, f"{{{', '.join(items)}}}" if items else "set()", items=items)


def _build_map(p: list[Text], n: int) -> Text:
    pairs = zip(p[::2], p[1::2], strict=True)
    return display("{", tuple(f"{key.text}: {value.text}" for key, value in pairs), "}", p)


def _const_key_map(p: list[Text], n: int) -> Text:
    keys = p[-1].items
    if keys is None:  # not written out, or too long to be
        return of(p, f"dict(zip({p[-1].text}, ({', '.join(_texts(p[:-1]))},)))")
    return display("{", tuple(f"{key}: {part.text}" for key, part in zip(keys, p, strict=False)), "}", p)


def _list_to_tuple(p: list[Text], arg: None) -> Text:
    return of(p, f"tuple({p[0].text})") if p[0].items is None else display("(", p[0].items, ")", p)


def starred(part: Text) -> tuple[str, ...]:
    """The items that an iterable adds to a list, tuple, set or positional arguments."""
    spread = part.items is not None and part.text[0] in "(["
    return part.items if spread and part.items is not None else (f"*{at_least(part, COMPARE + 1)}",)


# ---- calls and functions ----


def call(callee: Text, arguments: tuple[str, ...], parts: list[Text]) -> Text:
    """`callee(arguments)`."""
    return of(parts, f"{primary(callee)}({', '.join(arguments)})")


def keyword_arguments(parts: list[Text], kwnames: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments of a CALL."""
    split = len(parts) - len(kwnames)
    named = tuple(f"{name}={part.text}" for name, part in zip(kwnames, parts[split:], strict=True))
    return _texts(parts[:split]) + named


def unpacked_arguments(parts: list[Text]) -> tuple[str, ...]:
    """The arguments of a CALL_FUNCTION_EX: an iterable and perhaps a mapping."""
    positional, *mapping = parts
    if not mapping:
        return starred(positional)
    items = mapping[0].items
    if items and all(item.startswith("**") for item in items):
        return starred(positional) + items
    return (*starred(positional), f"**{at_least(mapping[0], COMPARE + 1)}")


def _function(p: list[Text], parts: frozenset[str]) -> Text:
    names = [part for part in FUNCTION_PARTS if part in parts]
    extra = [f"{name}={part.text}" for name, part in zip(names, p, strict=False)]
    return of(p, f"function({', '.join([p[-1].text, *extra])})")


def super_attribute(p: list[Text], shape: SuperShape) -> Text:
    """`super(class, self).name` of the three values on the stack."""
    return of(p, f"{primary(p[0])}({p[1].text}, {p[2].text}).{shape.name}")


def attribute(p: list[Text], name: str) -> Text:
    """`owner.name`."""
    return of(p, f"{primary(p[0])}.{name}")


def _import(p: list[Text], name: str) -> Text:
    level, names = p
    extra = [] if names.text == "None" else [f"fromlist={names.text}"]
    extra += [] if level.text == "0" else [f"level={level.text}"]
    return of(p, f"__import__({', '.join([repr(name), *extra])})")


def generic(op: str, parts: list[Text], arg: object) -> Text:
    """Any operation as a call of its name, with the operand last."""
    if op in ("CALL_INTRINSIC_1", "CALL_INTRINSIC_2"):
        op, arg = str(arg), None
    shown = [] if arg is None else [arg if OPS[op].operand in ("local", "deref") else constant_text(arg)]
    return of(parts, f"{op.lower()}({', '.join([*_texts(parts), *map(str, shown)])})")


EXPRESSIONS: Final[Mapping[str, Expression]] = {
    "LOAD_CONST": constant,
    "LOAD_ATTR": attribute,
    "LOAD_SUPER_ATTR": super_attribute,
    "BINARY_SUBSCR": lambda p, arg: of(p, f"{primary(p[0])}[{p[1].text}]"),
    "BINARY_SLICE": lambda p, arg: of(p, f"{primary(p[0])}[{bounds(p[1:])}]"),
    "BINARY_OP": _binary,
    "COMPARE_OP": _compare,
    "IS_OP": _test("is", "is not"),
    "CONTAINS_OP": _test("in", "not in"),
    "UNARY_NOT": lambda p, arg: of(p, f"not {at_least(p[0], NOT)}", NOT, negated=p[0].text),
    "UNARY_NEGATIVE": _prefix("-", UNARY),
    "UNARY_POSITIVE": _prefix("+", UNARY),
    "UNARY_INVERT": _prefix("~", UNARY),
    "TO_BOOL": _call_like("bool"),
    "GET_ITER": _call_like("iter"),
    "BUILD_TUPLE": lambda p, n: display("(", _texts(p), ")", p),
    "BUILD_LIST": lambda p, n: display("[", _texts(p), "]", p),
    "BUILD_SET": _build_set,
    "BUILD_MAP": _build_map,
    "BUILD_CONST_KEY_MAP": _const_key_map,
    "BUILD_SLICE": _call_like("slice"),
    "BUILD_STRING": _build_string,
    "LIST_TO_TUPLE": _list_to_tuple,
    "FORMAT_SIMPLE": lambda p, arg: _formatted(p, _field(p[0])),
    "FORMAT_WITH_SPEC": _format_with_spec,
    "CONVERT_VALUE": _convert,
    "MAKE_FUNCTION": _function,
    "LOAD_BUILD_CLASS": lambda p, arg: Text("__build_class__"),
    "LOAD_ASSERTION_ERROR": lambda p, arg: Text("AssertionError", pure=True),
    "LOAD_LOCALS": lambda p, arg: Text("locals()"),
    "IMPORT_NAME": _import,
}


def bounds(parts: list[Text]) -> str:
    """`start:stop`, leaving out None."""
    return ":".join("" if part.text == "None" else part.text for part in parts)
