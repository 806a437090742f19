"""The tables of handlers: no key is taken twice, in any file."""

from collections.abc import Callable
from typing import Any

import pytest

from framesmith_dynamo.breaks import register_break
from framesmith_dynamo.interpreter.handler_registry import interprets
from framesmith_dynamo.interpreter.handlers import load
from framesmith_dynamo.values.c_methods import c_method
from framesmith_dynamo.values.callables import CALL_HANDLERS, handles
from framesmith_dynamo.values.objects.attributes import binds
from framesmith_dynamo.values.wrap import load_tables
from framesmith_dynamo.values.wrap_registry import (
    BUILDER_FAMILIES,
    WRAPPER_FAMILIES,
    Family,
    builds_family,
    builds_type,
    wraps_family,
    wraps_type,
)

load()
load_tables()


@pytest.mark.parametrize(
    "enter",
    [
        interprets("LOAD_FAST"),
        handles(len),
        handles(list),
        handles(dict.fromkeys),
        c_method("__init__", object),
        c_method("join", str),
        wraps_type(dict),
        builds_type(dict),
        wraps_family(Family.CLASS, callable),
        builds_family(Family.CLASS, callable),
        binds(property),
    ],
)
def test_a_key_has_one_row(enter: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match="is registered already"):
        enter(lambda *args: None)


def test_families_are_tried_in_their_order() -> None:
    assert [*WRAPPER_FAMILIES] == [*Family] and [*BUILDER_FAMILIES] == sorted(BUILDER_FAMILIES)


def test_an_unknown_instruction_has_no_handler() -> None:
    with pytest.raises(ValueError, match="no canonical operations"):
        interprets("JUMP_IF_TRUE_OR_POP")


def test_a_break_has_one_kind() -> None:
    with pytest.raises(ValueError, match="registered twice"):
        register_break("print", what="", why="", hint="")


def test_a_row_enters_under_all_its_keys_or_raises_at_import() -> None:
    class First: ...

    class Second: ...

    row: Any = lambda tr, args, kwargs: None  # noqa: E731
    handles(First, Second)(row)
    assert CALL_HANDLERS.pop(First) is CALL_HANDLERS.pop(Second) is row
