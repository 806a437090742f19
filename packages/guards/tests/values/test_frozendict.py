"""Guards on frozendicts (3.15): their keys, items and lengths, native and reference; specialised and written."""

import builtins
import sys
import types

import pytest
import torch

from framesmith_guards import (
    DictKeySource,
    DictValueSource,
    Guard,
    GuardError,
    ItemSource,
    LocalSource,
    compile_guards,
    portable,
)
from framesmith_guards.sources.steps import StoredItemSource
from framesmith_guards.specialize import guards_of

X = LocalSource("x")

if not hasattr(builtins, "frozendict"):
    pytest.skip("this CPython has no frozendict", allow_module_level=True)

frozen = builtins.frozendict


class Named(frozen):
    """A frozendict whose own methods must not be asked."""

    def keys(self):
        raise AssertionError("keys")

    def __len__(self):
        raise AssertionError("len")

    def __contains__(self, key):
        raise AssertionError("contains")


class Key:
    pass


KEY, TENSOR = Key(), torch.ones(2)


def program(*guards):
    return compile_guards(guards, ("x",))


@pytest.mark.parametrize("cls", [frozen, Named])
@pytest.mark.parametrize(
    ("kind", "expected", "missed"),
    [
        ("DICT_KEYS", ("a", "b"), [{"b": 1, "a": 2}, {"a": 1}, {"a": 1, "c": 2}, {"a": 1, "b": 1, "c": 1}]),
        ("DICT_CONTAINS", "b", [{"a": 1}, {}]),
        ("DICT_NOT_CONTAINS", "c", [{"c": 1}]),
        ("LENGTH", 2, [{}, {"a": 1, "b": 2, "c": 3}]),
    ],
)
def test_kinds(cls, kind, expected, missed, guarded):
    guard = Guard(X, kind, expected)
    check = program(guard)
    for holder in (cls({"a": 1, "b": 2}), cls(b=0) if kind == "DICT_CONTAINS" else cls(a=2, b=[])):
        assert check((holder,), guarded) and guard.kind.holds(holder, guard.expected)
    for other in missed:
        assert not check((cls(other),), guarded) and not guard.kind.holds(cls(other), guard.expected)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (DictKeySource(X, 1), KEY),
        (DictValueSource(X, 1), TENSOR),
        (ItemSource(X, "a"), 1),
        (StoredItemSource(X, "a"), 1),
    ],
)
def test_steps(source, found, guarded):
    holder = frozen({"a": 1, KEY: TENSOR})
    check = program(Guard(X, "TYPE_MATCH", frozen), Guard(source, "ID_MATCH", found))
    assert source.read(holder, {}, None) is found
    assert check((holder,), guarded)
    assert not check((frozen({"a": 2, Key(): torch.ones(2)}),), guarded)
    assert not check((frozen(),), guarded) and not check((dict(holder),), guarded)


def test_items_are_specialised(guarded):
    check = program(*guards_of(frozen(a=TENSOR, b=2), X))
    assert check((frozen(a=torch.zeros(2), b=2),), guarded)
    for other in (frozen(a=TENSOR, b=3), frozen(b=2, a=TENSOR), frozen(a=torch.ones(3), b=2), {"a": TENSOR, "b": 2}):
        assert not check((other,), guarded)


def test_they_travel(guarded):
    guard = Guard(X, "EQUALS_MATCH", frozen(a=1, b=frozen(c=(2.0,))))
    [read] = portable.loads(portable.dumps([guard]))
    assert read == guard and type(read.expected) is frozen and type(read.expected["b"]) is frozen
    assert not program(read)(({"a": 1, "b": {"c": (2.0,)}},), guarded)


def test_sentinels_travel_by_name(monkeypatch):
    module = types.ModuleType("module_of_sentinels")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec("MISSING = sentinel('MISSING')\nnamed_otherwise = sentinel('OTHER')\nnumber = 1", vars(module))
    guard = Guard(X, "EQUALS_MATCH", module.MISSING)
    text = portable.dumps([guard])
    assert portable.loads(text)[0].expected is module.MISSING
    with pytest.raises(GuardError, match="OTHER cannot travel"):
        portable.dumps([Guard(X, "EQUALS_MATCH", module.named_otherwise)])
    with pytest.raises(GuardError, match="number is no sentinel"):
        portable.loads(text.replace('"MISSING"', '"number"'))
    del module.MISSING
    with pytest.raises(GuardError, match="exports no MISSING"):
        portable.loads(text)
