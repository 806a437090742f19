"""Every guard kind: the compiled text, the reference and the explanation agree on cases that hold and that miss."""

import pytest
import torch

from framesmith_guards import Guard, GuardError, LocalSource, compile_guards, state_guards
from framesmith_guards.kinds.state import BY_KIND
from framesmith_guards.kinds.table import KINDS, GuardKind
from framesmith_guards.programs.native import state as native_state
from framesmith_guards.programs.native.lowering import Lowering
from framesmith_guards.programs.native.probing import extension
from framesmith_guards.programs.native.rows import CHECKS, Operation

ARGS = ("x", "y", "z")
ON_TENSORS = ("SAME_STORAGE", "NO_OVERLAP", "ALL_DISJOINT")

needs_native = pytest.mark.skipif(extension()[0] is None, reason=str(extension()[1]))


def padded(args):
    return (*args, *[None] * (3 - len(args)))


def on_these_tensors(guard, args):
    """A native program of the guard that knows of the arguments that they are tensors, and of what metadata."""
    tensors = [(LocalSource(name), value) for name, value in zip(ARGS, args) if isinstance(value, torch.Tensor)]
    known = [Guard(source, "TENSOR_MATCH", value) for source, value in tensors]
    return compile_guards([*known, guard, *state_guards(["TORCH_FUNCTION_MODES"])], ARGS, native=True)


def answers(guard, argnames, native=(False, True)):
    """The ways to ask whether a guard holds: its text, its native program, its reference predicate."""
    found = {}
    if False in native:
        found["text"] = compile_guards([guard], argnames, native=False)
    guards = [guard] if guard.kind.name in BY_KIND else [guard, *state_guards(["TORCH_FUNCTION_MODES"])]
    if True in native and extension()[0] is not None:
        found["native"] = compile_guards(guards, argnames, native=True)
    if "native" in found and guard.kind.name in ON_TENSORS:
        found["native with tensors"] = lambda args, function: on_these_tensors(guard, args)(args, function)
    program = compile_guards([guard], argnames, native=False)
    found["reference"] = lambda args, function: program.explain(args, function) is None
    return found


def faults_of_cases(cases, function, rebuild=lambda guard: guard, native=(False, True)):
    """Return the faults of the cases' guards, as (kind, fault) pairs; empty for a sound implementation."""
    found = []
    for case in cases:
        guard = rebuild(case.guard)
        for way, holds in answers(guard, ARGS, native).items():
            for expected, argument_lists in ((True, case.hold), (False, case.miss)):
                for number, args in enumerate(map(padded, argument_lists)):
                    if holds(args, function) is not expected:
                        found.append((guard.kind.name, f"the {way} says {not expected} for arguments {number}"))
    return found


def faults_of_state(changes, make_guard, function, rebuild=lambda guard: guard):
    """The same for the kinds about torch's state."""
    found = []
    for kind, contexts in changes.items():
        guard = rebuild(make_guard(kind))
        for way, holds in answers(guard, ()).items():
            if not holds((), function):
                found.append((kind, f"the {way} misses though nothing changed"))
            for context in contexts:
                with context:
                    if holds((), function):
                        found.append((kind, f"the {way} holds though the state changed"))
            if not holds((), function):
                found.append((kind, f"the {way} misses though the state is back"))
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

    found = faults_of_cases(cases, guarded, rebuild, native=(False,))
    assert {kind for kind, _ in found} == {name}
    assert any(what.startswith("the text") for _, what in found)
    assert any(what.startswith("the reference") for _, what in found)


@needs_native
@pytest.mark.parametrize("name", sorted(CHECKS))
def test_mutation_disabling_a_native_row_is_caught(name, cases, guarded, monkeypatch):
    def always(target, guard):
        return Operation("IS_NOT", a=0 if guard.kind.name == "SHAPE" else target.register(guard.source), address=1)

    own = [case for case in cases if case.guard.kind.name == name]
    monkeypatch.setitem(CHECKS, name, always)
    monkeypatch.setattr(Lowering, "_home", lambda self, guard: None)
    found = faults_of_cases(own, guarded)
    assert found and all(what.startswith("the native") and "says True" in what for _, what in found)


@pytest.mark.parametrize("name", sorted(BY_KIND))
def test_mutation_disabling_a_state_kind_is_caught(name, changes, make_state_guard, guarded, monkeypatch):
    def insensitive(guard):
        if guard.kind.name == name:
            monkeypatch.setitem(BY_KIND, name, type(BY_KIND[name])(name, lambda: guard.expected, ""))
        return guard

    found = faults_of_state({name: changes[name]}, make_state_guard, guarded, insensitive)
    assert (name, "the text holds though the state changed") in found


def test_a_torch_whose_snapshot_says_less_is_asked_more(changes, make_state_guard, guarded, monkeypatch):
    class Snapshot:
        def __getstate__(self):
            return '{"grad_mode": true}'

    monkeypatch.setattr(native_state.unstable, "GlobalStateGuard", Snapshot)
    assert native_state._covered() == {"GRAD_MODE"}
    monkeypatch.setattr(native_state.unstable, "GlobalStateGuard", None)
    assert native_state._covered() == frozenset()
    monkeypatch.setattr(native_state, "COVERED", frozenset())
    assert faults_of_state(changes, make_state_guard, guarded) == []


@pytest.fixture
def precisions():
    """The modules with the newer settings of precision, restored afterwards."""
    modules = (torch.backends, torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    for module in modules:
        module.fp32_precision = "none"
    yield dict(zip(("all", "cuda", "mkldnn"), modules, strict=True))
    for module in modules:
        module.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True


@pytest.mark.parametrize(
    ("where", "precision", "rounds"),
    [("all", "tf32", True), ("cuda", "tf32", True), ("cuda", "ieee", False), ("mkldnn", "bf16", False)],
)
def test_the_newer_settings_of_precision_alone(where, precision, rounds, precisions, make_state_guard, guarded):
    """torch's older functions raise then."""
    before = make_state_guard("MATMUL_PRECISION")
    waiting = answers(before, ())
    precisions[where].fp32_precision = precision
    after = make_state_guard("MATMUL_PRECISION")
    assert (before.expected, after.expected) == (False, rounds)
    assert {way: holds((), guarded) for way, holds in waiting.items()} == dict.fromkeys(waiting, not rounds)
    assert all(holds((), guarded) for holds in answers(after, ()).values())


@needs_native
@pytest.mark.parametrize("name", sorted(BY_KIND))
def test_mutation_disabling_a_native_state_row_is_caught(name, changes, make_state_guard, guarded, monkeypatch):
    monkeypatch.setitem(native_state._CHEAPER, name, lambda expected: ())
    monkeypatch.setattr(native_state, "readable_modes", lambda: 0)
    if name in native_state.COVERED:  # these are compared by torch's own snapshot
        monkeypatch.setattr(native_state, "_renew", lambda: lambda: lambda: True)
    found = faults_of_state({name: changes[name]}, make_state_guard, guarded)
    assert {what for _, what in found} == {"the native holds though the state changed"}


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
        ("PLAIN_LEAF", "float32", "the dtype of the gradients"),
        ("SHAPE", "s0 > 1", "ShapeExpr.of"),
        ("NONE_MATCH", 1, "expects nothing"),
        ("DUPLICATE_INPUT", "y", "expects the Source"),
        ("HASATTR", 3, "is a str"),
        ("DICT_KEYS", 3, "a dict or its keys"),
        ("NUMBERED_KEYS", (0, 2), "positions"),
        ("CLASS_LAYOUT", 3, "expects a class, not 3"),
        ("SAME_STORAGE", "y", "expects the Source"),
        ("NO_OVERLAP", ["y"], "expects the Source"),
        ("ALL_DISJOINT", ["y"], "expects the Source"),
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
