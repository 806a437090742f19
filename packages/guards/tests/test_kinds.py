"""Every guard kind: the compiled text, the reference and the explanation agree on cases that hold and that miss."""

import pytest
import torch

from framesmith_guards import KINDS, Guard, GuardError, LocalSource, compile_guards
from framesmith_guards.kinds import GuardKind
from framesmith_guards.state import BY_KIND

ARGS = ("x", "y", "z")


def padded(args):
    return (*args, *[None] * (3 - len(args)))


def faults_of_cases(cases, function, rebuild=lambda guard: guard):
    """What is wrong with the guards of the cases, as (kind, what) pairs; empty for a sound implementation."""
    found = []
    for case in cases:
        guard = rebuild(case.guard)
        program = compile_guards([guard], ARGS)
        for expected, argument_lists in ((True, case.hold), (False, case.miss)):
            for number, args in enumerate(map(padded, argument_lists)):
                if program(args, function) is not expected:
                    found.append((guard.kind.name, f"the text says {not expected} for arguments {number}"))
                if (program.explain(args, function) is None) is not expected:
                    found.append((guard.kind.name, f"the reference says {not expected} for arguments {number}"))
    return found


def faults_of_state(changes, make_guard, function, rebuild=lambda guard: guard):
    """The same for the kinds about torch's state."""
    found = []
    for kind, contexts in changes.items():
        guard = rebuild(make_guard(kind))
        program = compile_guards([guard], ())
        if not program((), function) or program.explain((), function) is not None:
            found.append((kind, "misses though nothing changed"))
        for context in contexts:
            with context:
                if program((), function):
                    found.append((kind, "the text holds though the state changed"))
                if program.explain((), function) is None:
                    found.append((kind, "the reference holds though the state changed"))
        if not program((), function):
            found.append((kind, "misses though the state is back"))
    return found


def test_every_kind_has_cases(cases, changes):
    assert {case.guard.kind.name for case in cases} | changes.keys() == KINDS.keys()
    assert changes.keys() == BY_KIND.keys()


def test_cases(cases, guarded):
    assert faults_of_cases(cases, guarded) == []


def test_state(changes, make_state_guard, guarded):
    assert faults_of_state(changes, make_state_guard, guarded) == []


def disabled(kind: GuardKind) -> GuardKind:
    """The row with its check taken out."""
    return GuardKind(
        kind.name,
        kind.cost,
        lambda expected: expected,
        lambda *values: True,
        lambda program, x, expected, operands: "True",
        kind.explain,
        kind.operands,
    )


@pytest.mark.parametrize("name", sorted(KINDS.keys() - BY_KIND.keys()))
def test_mutation_disabling_a_kind_is_caught(name, cases, guarded):
    def rebuild(guard):
        if guard.kind.name != name:
            return guard
        return Guard(guard.source, disabled(guard.kind), guard.expected)

    found = faults_of_cases(cases, guarded, rebuild)
    assert {kind for kind, _ in found} == {name}
    assert any(what.startswith("the text") for _, what in found)
    assert any(what.startswith("the reference") for _, what in found)


@pytest.mark.parametrize("name", sorted(BY_KIND))
def test_mutation_disabling_a_state_kind_is_caught(name, changes, make_state_guard, guarded, monkeypatch):
    def blind(guard):
        if guard.kind.name == name:
            monkeypatch.setitem(BY_KIND, name, type(BY_KIND[name])(name, lambda: guard.expected, ""))
        return guard

    found = faults_of_state({name: changes[name]}, make_state_guard, guarded, blind)
    assert (name, "the text holds though the state changed") in found


def test_every_miss_is_explained_in_words(cases, guarded):
    for case in cases:
        program = compile_guards([case.guard], ARGS)
        for args in map(padded, case.miss):
            text = program.explain(args, guarded)
            assert "expected" in text or "cannot be" in text, text


@pytest.mark.parametrize(
    ("kind", "expected", "message"),
    [
        ("TYPE_MATC", int, "did you mean 'TYPE_MATCH'"),
        ("TYPE_MATCH", 3, "expects a type, not 3"),
        ("EQUALS_MATCH", object(), "use ID_MATCH"),
        ("EQUALS_MATCH", [object()], "use ID_MATCH"),
        ("EQUALS_MATCH", list(range(5000)), "more than 4096 elements"),
        ("ID_MATCH", [1], "has no weak references"),
        ("BOOL_MATCH", 1, "True or False"),
        ("LENGTH", -1, "non-negative"),
        ("TENSOR_MATCH", 3, "needs a torch.Tensor"),
        ("SHAPE", "s0 > 1", "ShapeExpr.of"),
        ("NONE_MATCH", 1, "expects nothing"),
        ("DUPLICATE_INPUT", "y", "expects the Source"),
        ("HASATTR", 3, "is a str"),
        ("DICT_KEYS", 3, "a dict or its keys"),
        ("FUNCTION_CODE", 3, "a function or a code object"),
    ],
)
def test_bad_expectations_are_refused_at_the_door(kind, expected, message):
    with pytest.raises(GuardError, match=message):
        Guard(LocalSource("x"), kind, expected)


def test_expectations_are_snapshots(guarded):
    value = {"a": [1]}
    program = compile_guards([Guard(LocalSource("x"), "EQUALS_MATCH", value)], ("x",))
    assert program((value,), guarded)
    value["a"].append(2)
    assert not program((value,), guarded)


def test_user_equality_is_never_called(guarded):
    class Liar:
        def __eq__(self, other):
            raise AssertionError("called")

        __hash__ = object.__hash__

    guards = [
        Guard(LocalSource("x"), "EQUALS_MATCH", value) for value in (1, "a", (1, 2), {"a": 1}, 2.5, torch.float32)
    ]
    for guard in guards:
        program = compile_guards([guard], ("x",))
        for value in (Liar(), (Liar(), 2), {"a": Liar()}):
            assert not program((value,), guarded)
            assert program.explain((value,), guarded) is not None
