"""Portable guards: there and back, the same checks; what cannot travel is refused by name; nothing executes."""

import json
import re
import sys

import pytest
import sympy
import torch

from framesmith_guards import (
    Guard,
    GuardError,
    LocalSource,
    ShapeEnvSource,
    ShapeExpr,
    TensorPropertySource,
    compile_guards,
    portable,
    state_guards,
)
from framesmith_guards.kinds.state import STATE_FIELDS

X, Y = LocalSource("x"), LocalSource("y")
ARGS = ("x", "y", "z")


def padded(args):
    return (*args, *[None] * (3 - len(args)))


def test_every_case_travels_or_is_refused_by_name(cases, guarded):
    travelled = set()
    for case in cases:
        try:
            text = portable.dumps([case.guard])
        except GuardError as error:
            assert case.guard.kind.name in str(error) and "cannot travel" in str(error)
            continue
        [guard] = portable.loads(text)
        assert guard.kind is case.guard.kind and guard.source is case.guard.source
        program = compile_guards([guard], ARGS)
        assert all(program(padded(args), guarded) for args in case.hold)
        assert not any(program(padded(args), guarded) for args in case.miss)
        assert portable.dumps([guard]) == text
        travelled.add(guard.kind.name)
    assert travelled >= {"TYPE_MATCH", "EQUALS_MATCH", "TENSOR_MATCH", "SHAPE", "NOT_ALIASED", "DICT_KEYS", "ID_MATCH"}


def test_state_travels():
    guards = state_guards([field.kind for field in STATE_FIELDS])
    assert portable.loads(portable.dumps(guards)) == guards


def test_whole_sets_share_their_sources():
    size = TensorPropertySource(X, "size", 0)
    a, b = sympy.symbols("a b", integer=True)
    guards = [
        Guard(X, "TENSOR_MATCH", torch.ones(2, 3)),
        Guard(ShapeEnvSource(), "SHAPE", ShapeExpr.of(sympy.Eq(a, 2 * b), {a: size, b: Y})),
        Guard(X, "DUPLICATE_INPUT", Y),
        Guard(Y, "EQUALS_MATCH", re.RegexFlag.DOTALL),
    ]
    text = portable.dumps(guards)
    assert len(json.loads(text)["sources"]) == 4
    assert portable.loads(text) == guards


def test_what_exists_in_this_process_only_is_refused():
    class Local:
        pass

    def function():
        pass

    thing = Local()
    for guard, what in [
        (Guard(X, "ID_MATCH", thing), "Local object"),
        (Guard(X, "TYPE_MATCH", Local), "type .*Local"),
        (Guard(X, "FUNCTION_CODE", function), "code .*function"),
        (Guard(X, "EQUALS_MATCH", (1, Local)), "type .*Local"),
        (Guard(X, "DICT_KEYS", {thing: 1}), "Local object"),
    ]:
        with pytest.raises(GuardError, match=f"{guard.kind.name} on .*{what}.* cannot travel"):
            portable.dumps([guard])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 1}',
        '{"format": 2, "torch": "1.0"}',
    ],
)
def test_other_text_is_refused(text):
    with pytest.raises(GuardError):
        portable.loads(text)


def damaged(**changes):
    document = json.loads(portable.dumps([Guard(X, "EQUALS_MATCH", (1, 2.0))]))
    document.update(changes)
    return json.dumps(document)


@pytest.mark.parametrize(
    "changes",
    [
        {"torch": "0.1"},
        {"sources": [["LocalSourc", "x"]]},
        {"sources": [["LocalSource"]]},
        {"sources": []},
        {"guards": [["EQUALS", 0, ["value", 1]]]},
        {"guards": [["EQUALS_MATCH", 5, ["value", 1]]]},
        {"guards": [["EQUALS_MATCH", 0, ["code", "print()"]]]},
        {"guards": [["ID_MATCH", 0, ["value", ["ref", ["module", "never.imported.module"]]]]]},
        {"guards": [["TYPE_MATCH", 0, ["value", ["ref", ["export", ["antigravity", "x"]]]]]]},
        {"guards": [["SHAPE", 0, ["shape", ["__import__", "os"], []]]]},
    ],
)
def test_damaged_documents_are_refused_and_import_nothing(changes):
    with pytest.raises(GuardError):
        portable.loads(damaged(**changes))
    assert "antigravity" not in sys.modules
