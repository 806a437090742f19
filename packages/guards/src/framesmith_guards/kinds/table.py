"""The table of guard kinds: a guard row says what a kind compares, its Python text, and how a miss is explained."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch

from framesmith_guards.errors import GuardError, nearest
from framesmith_guards.kinds import freezing, leaves, predicates, storages
from framesmith_guards.kinds.shapes import ShapeExpr
from framesmith_guards.kinds.state import STATE_FIELDS, StateField
from framesmith_guards.sources import Names, Source
from framesmith_guards.sources.caches import ABSENT
from framesmith_guards.torch_adapter import unstable
from framesmith_guards.values.classes import ClassLayout
from framesmith_guards.values.constants import same_constant
from framesmith_guards.values.refs import Ref, describe
from framesmith_guards.values.tensors import TensorSpec, check_text, dispatch_keys, first_difference


class Program(Names, Protocol):
    """The program that a check's text becomes part of."""

    def identical(self, x: str, ref: Ref) -> str:
        """Return the expression of `x` being the referenced object."""


Text = Callable[[Program, str, Any, tuple[str, ...]], str]
"""(program, the value's variable, expected, the operands' variables) -> an expression, true if the guard holds."""


def _no_operands(expected: Any) -> tuple[Source, ...]:
    return ()


def _explain(value: object, expected: object, *others: object) -> str:
    wanted = expected.text if isinstance(expected, Ref) else describe_expected(expected)
    return f"expected {wanted}, found {describe(value)}"


def describe_expected(expected: object) -> str:
    """Return a constant as its repr, anything else in words; shortened."""
    text = str(expected) if isinstance(expected, (ShapeExpr, TensorSpec, Ref, ClassLayout)) else repr(expected)
    return text if len(text) <= 80 else text[:77] + "..."


@dataclass(frozen=True, eq=False)
class GuardKind:
    """One row: `holds` is the meaning, `text` the same as Python; `cost` orders checks, cheap ones first.

    reads_value: it uses Python's protocols on the value, which may be a tensor. only_relates: it is about its operands;
    its own source has no value. about_state: it is about torch's state (`state.BY_KIND` reads it), not about a value.
    """

    name: str
    cost: int
    freeze: Callable[[Any], Any]
    holds: Callable[..., bool]
    text: Text
    explain: Callable[..., str] = _explain
    operands: Callable[[Any], tuple[Source, ...]] = _no_operands
    reads_value: bool = False
    only_relates: bool = False
    about_state: bool = False

    @property
    def takes_one_source(self) -> bool:
        """Whether the expectation is a single source."""
        return self.freeze is freezing.a_source

    def __repr__(self) -> str:
        return self.name


def _template(template: str, *helpers: Callable[..., Any]) -> Text:
    """Return a text with {x} the value, {e} the expectation, {o} the first operand, and helpers by their names."""

    def render(program: Program, x: str, expected: Any, operands: tuple[str, ...]) -> str:
        names = {helper.__name__: program.bind(helper, helper.__name__) for helper in helpers}
        e = program.bind(expected, "expected") if "{e}" in template else ""
        return template.format(x=x, e=e, o=operands[0] if operands else "", **names)

    return render


def _reference(template: str, *helpers: Callable[..., Any]) -> Text:
    """Return a text that compares the result of `template` by identity."""

    def render(program: Program, x: str, expected: Ref, operands: tuple[str, ...]) -> str:
        return program.identical(_template(template, *helpers)(program, x, expected, operands), expected)

    return render


def _equals_text(program: Program, x: str, expected: Any, operands: tuple[str, ...]) -> str:
    cls = type(expected)
    bound = program.bind(expected, "expected")
    if expected is None or cls is bool or cls in (torch.dtype, torch.layout, torch.memory_format):
        return f"{x} is {bound}"
    if cls in (int, str, bytes) or (cls is float and expected != 0 and math.isfinite(expected)):
        return f"type({x}) is {cls.__name__} and {x} == {bound}"
    return f"{program.bind(same_constant, 'same_constant')}({x}, {bound})"


def _tensor_text(program: Program, x: str, spec: TensorSpec, operands: tuple[str, ...]) -> str:
    return f"{program.identical(f'type({x})', spec.pytype)} and {check_text(x, spec, program.bind)}"


def _explain_tensor(value: object, spec: TensorSpec) -> str:
    difference = first_difference(value, spec)
    if difference is None:
        return "the tensor matches"
    field, wanted, found = difference
    if field == "dispatch_keys":
        return f"expected dispatch keys {_key_names(wanted)}, found {_key_names(found)}"
    return f"expected {field} {wanted}, found {found}"


def _key_names(raw: Any) -> str:
    return str(unstable.from_raw_repr(raw))


def _shape_text(program: Program, x: str, expected: ShapeExpr, operands: tuple[str, ...]) -> str:
    return expected.text(operands)


def _explain_shape(value: object, expected: ShapeExpr, *numbers: object) -> str:
    found = ", ".join(f"{s.name} = {n}" for s, n in zip(expected.sources, numbers, strict=True))
    return f"expected {expected}, found {found}"


def _distinct_text(program: Program, x: str, expected: Any, operands: tuple[str, ...]) -> str:
    if len(operands) == 1:
        return f"{x} is not {operands[0]}"
    ids = ", ".join(f"id({name})" for name in (x, *operands))
    return f"len({{{ids}}}) == {len(operands) + 1}"


def _explain_distinct(value: object, expected: tuple[Source, ...], *others: object) -> str:
    seen: dict[int, str] = {id(value): "it"}
    for source, other in zip(expected, others, strict=True):
        if id(other) in seen:
            return f"expected distinct objects, found that {source.name} is also {seen[id(other)]}"
        seen[id(other)] = source.name
    return "the objects are distinct"


def _memory_text(predicate: Callable[..., bool]) -> Text:
    def text(program: Program, x: str, expected: Any, operands: tuple[str, ...]) -> str:
        return f"{program.bind(predicate, predicate.__name__)}({', '.join((x, *operands))})"

    return text


def _explain_overlap(value: object, expected: tuple[Source, ...], *others: object) -> str:
    met = [s.name for s, other in zip(expected, others, strict=True) if not storages.no_overlap(value, other)]
    return f"expected memory apart from the others', found that it overlaps {', '.join(met)}"


def _cached_call_text(program: Program, x: str, expected: Any, operands: tuple[str, ...]) -> str:
    return f"{program.bind(expected, 'expected')}.holds({', '.join((x, *operands))})"


def _held(result: object) -> str:
    return "nothing" if result is ABSENT else f"nothing or {describe_expected(result)}"


def _state_kind(field: StateField) -> GuardKind:
    def explain(value: object, expected: object) -> str:
        return f"{field.meaning}: expected {describe_expected(expected)}, found {describe_expected(field.read())}"

    def text(program: Program, x: str, expected: Any, operands: tuple[str, ...]) -> str:
        reader = program.bind(field.read, field.kind.lower())
        return f"{reader}() == {program.bind(expected, 'expected')}"

    return GuardKind(
        field.kind, 0, freezing.state, lambda _, e: bool(field.read() == e), text, explain, about_state=True
    )


_KINDS: Final = (
    GuardKind("TYPE_MATCH", 1, freezing.a_type, predicates.has_type, _reference("type({x})")),
    GuardKind("ID_MATCH", 1, freezing.identity, predicates.same_ref, _reference("{x}")),
    GuardKind("NONE_MATCH", 1, freezing.nothing, lambda v, e: v is None, _template("{x} is None")),
    GuardKind(
        "NOT_NONE",
        1,
        freezing.nothing,
        lambda v, e: v is not None,
        _template("{x} is not None"),
        lambda v, e: "expected anything but None, found None",
    ),
    GuardKind("BOOL_MATCH", 1, freezing.boolean, lambda v, e: v is e, _template("{x} is {e}")),
    GuardKind("EQUALS_MATCH", 2, freezing.constant, same_constant, _equals_text),
    GuardKind(
        "LENGTH",
        2,
        freezing.count,
        predicates.has_length,
        _template("{length_of}({x}) == {e}", predicates.length_of),
        lambda v, e: f"expected length {e}, found {predicates.length_of(v)}",
        reads_value=True,
    ),
    GuardKind(
        "DICT_KEYS",
        6,
        freezing.keys,
        predicates.same_keys,
        _template("{same_keys}({x}, {e})", predicates.same_keys),
        lambda v, e: f"expected keys {describe_expected(e)}, found {describe_expected(predicates.keys_of(v))}",
    ),
    GuardKind(
        "NUMBERED_KEYS",
        6,
        freezing.positions,
        predicates.has_numbered_keys,
        _template("{has_numbered_keys}({x}, {e})", predicates.has_numbered_keys),
        lambda v, e: f"expected an OrderedDict of {len(e)} numbers, its items in the order {e} of its table",
    ),
    GuardKind(
        "DICT_CONTAINS",
        3,
        freezing.constant,
        predicates.has_key,
        _template("{has_key}({x}, {e})", predicates.has_key),
        lambda v, e: f"expected the key {describe_expected(e)}, which is not there",
        reads_value=True,
    ),
    GuardKind(
        "DICT_NOT_CONTAINS",
        3,
        freezing.constant,
        lambda v, e: not predicates.has_key(v, e),
        _template("not {has_key}({x}, {e})", predicates.has_key),
        lambda v, e: f"expected no key {describe_expected(e)}, which is there",
        reads_value=True,
    ),
    GuardKind(
        "CLASS_LAYOUT",
        6,
        freezing.class_layout,
        predicates.same_layout,
        _template("{same_layout}({x}, {e})", predicates.same_layout),
        lambda v, e: e.explain(v),
    ),
    GuardKind(
        "NOT_SUBCLASS",
        5,
        freezing.a_type,
        predicates.not_subclass,
        _template("{not_subclass}({x}, {e})", predicates.not_subclass),
        lambda v, e: f"expected no subclass of {e.text}, found one",
    ),
    GuardKind(
        "HASATTR",
        5,
        freezing.attribute,
        lambda v, e: hasattr(v, e),
        _template("hasattr({x}, {e})"),
        lambda v, e: f"expected an attribute {e!r}, which is not there",
        reads_value=True,
    ),
    GuardKind(
        "NO_HASATTR",
        5,
        freezing.attribute,
        lambda v, e: not hasattr(v, e),
        _template("not hasattr({x}, {e})"),
        lambda v, e: f"expected no attribute {e!r}, which is there",
        reads_value=True,
    ),
    GuardKind(
        "TENSOR_MATCH",
        3,
        freezing.tensor,
        lambda v, e: first_difference(v, e) is None,
        _tensor_text,
        _explain_tensor,
        reads_value=True,
    ),
    GuardKind(
        "PLAIN_LEAF",
        4,
        freezing.a_dtype,
        leaves.is_plain_leaf,
        _template("{is_plain_leaf}({x}, {e})", leaves.is_plain_leaf),
        lambda v, e: f"expected a leaf without hooks, with gradients of {e}; {leaves.why_not_plain_leaf(v, e)}",
        reads_value=True,
    ),
    GuardKind(
        "DISPATCH_KEYS",
        4,
        lambda v: dispatch_keys(v) if isinstance(v, torch.Tensor) else int(v),
        lambda v, e: dispatch_keys(v) == e,
        _template("{dispatch_keys}({x}) == {e}", dispatch_keys),
        lambda v, e: f"expected dispatch keys {_key_names(e)}, found {_key_names(dispatch_keys(v))}",
        reads_value=True,
    ),
    GuardKind(
        "SUBCLASS_METADATA",
        7,
        freezing.metadata,
        predicates.same_metadata,
        _template("{same_metadata}({x}, {e})", predicates.same_metadata),
        lambda v, e: f"expected inner tensors and context {e}, found {predicates.flatten_metadata(v)}",
        reads_value=True,
    ),
    GuardKind("FUNCTION_CODE", 2, freezing.code, predicates.has_code, _reference("{code_of}({x})", predicates.code_of)),
    GuardKind(
        "WEAKREF_ALIVE",
        2,
        freezing.nothing,
        lambda v, e: predicates.is_alive(v),
        _template("{is_alive}({x})", predicates.is_alive),
        lambda v, e: "expected a weak reference to a living object, found a dead one",
    ),
    GuardKind(
        "CACHED_CALL",
        6,
        freezing.cached_call,
        lambda v, e, *numbers: e.holds(v, *numbers),
        _cached_call_text,
        lambda v, e, *numbers: f"expected {_held(e.result)} cached for ({e.key}), found something else",
        lambda e: e.sources,
    ),
    GuardKind(
        "TUPLE_ITERATOR",
        3,
        freezing.count,
        lambda v, e: predicates.items_left(v) == e,
        _template("{items_left}({x}) == {e}", predicates.items_left),
        lambda v, e: f"expected {e} items left in the iterator, found {predicates.items_left(v)}",
    ),
    GuardKind(
        "RANGE_ITERATOR",
        4,
        freezing.a_range,
        lambda v, e: same_constant(predicates.range_left(v), e),
        _template("{same_constant}({range_left}({x}), {e})", same_constant, predicates.range_left),
        lambda v, e: f"expected {e} left in the iterator, found {predicates.range_left(v)}",
    ),
    GuardKind(
        "DUPLICATE_INPUT",
        2,
        freezing.a_source,
        lambda v, e, other: v is other,
        _template("{x} is {o}"),
        lambda v, e, other: f"expected the same object as {e.name}, found another",
        lambda e: (e,),
    ),
    GuardKind(
        "NOT_ALIASED",
        4,
        freezing.some_sources,
        predicates.all_distinct,
        _distinct_text,
        _explain_distinct,
        lambda e: e,
    ),
    GuardKind(
        "SAME_STORAGE",
        6,
        freezing.a_source,
        storages.same_storage,
        _template("{storage_id}({x}) == {storage_id}({o})", storages.storage_id),
        lambda v, e, other: f"expected a view of the same storage as {e.name}, found another storage",
        lambda e: (e,),
        reads_value=True,
    ),
    GuardKind(
        "NO_OVERLAP",
        7,
        freezing.some_sources,
        lambda v, e, *others: storages.no_overlap(v, *others),
        _memory_text(storages.no_overlap),
        _explain_overlap,
        lambda e: e,
        reads_value=True,
    ),
    GuardKind(
        "ALL_DISJOINT",
        7,
        freezing.some_sources,
        lambda v, e, *others: storages.all_disjoint(v, *others),
        _memory_text(storages.all_disjoint),
        lambda *_: "expected memory apart from each other's, found tensors that overlap",
        lambda e: e,
        reads_value=True,
    ),
    GuardKind(
        "SHAPE",
        4,
        freezing.shape,
        lambda v, e, *numbers: e.holds(*numbers),
        _shape_text,
        _explain_shape,
        lambda e: e.sources,
        reads_value=True,
        only_relates=True,
    ),
    *map(_state_kind, STATE_FIELDS),
)

KINDS: Final[dict[str, GuardKind]] = {kind.name: kind for kind in _KINDS}
"""Every guard kind, by name."""


def kind_named(kind: str | GuardKind) -> GuardKind:
    """Return a kind by its name. GuardError, with the nearest name, if there is none."""
    found = kind if isinstance(kind, GuardKind) else KINDS.get(kind)
    if found is None:
        raise GuardError(f"no guard kind {kind!r}: {nearest(str(kind), KINDS)}")
    return found
