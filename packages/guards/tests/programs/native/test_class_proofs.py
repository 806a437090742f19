"""Proofs of classes by their versions, and of dicts that are arguments."""

from collections import OrderedDict
from types import MappingProxyType

import pytest
from native_programs import X, agreed, f, native

from framesmith_guards import (
    AttrSource,
    DictValueSource,
    Guard,
    InstanceDictSource,
    ItemSource,
    LocalSource,
    TypeSource,
)
from framesmith_guards.programs.native.probing import extension

pytestmark = pytest.mark.skipif(extension()[0] is None, reason=str(extension()[1]))


Y = LocalSource("y")


def class_guards(owner):
    """Guards on a class's dict and what it holds, and on a dict below that."""
    entries = InstanceDictSource(TypeSource(X))
    return [
        Guard(entries, "LENGTH", len(vars(owner))),
        Guard(entries, "DICT_CONTAINS", "scale"),
        Guard(entries, "DICT_NOT_CONTAINS", "absent"),
        Guard(ItemSource(entries, "scale"), "EQUALS_MATCH", 2),
        Guard(ItemSource(entries, "method"), "FUNCTION_CODE", owner.method),
        Guard(ItemSource(entries, "table"), "DICT_KEYS", owner.table),
        Guard(ItemSource(ItemSource(entries, "table"), "a"), "EQUALS_MATCH", 1),
    ]


def other_method(self):
    """Another one."""


CLASS_CHANGES = [
    ("scale", lambda owner: setattr(owner, "scale", 3)),
    ("gained", lambda owner: setattr(owner, "absent", 3)),
    ("lost", lambda owner: delattr(owner, "scale")),
    ("method", lambda owner: setattr(owner, "method", other_method)),
    ("code", lambda owner: setattr(owner.method, "__code__", other_method.__code__)),
    ("below", lambda owner: owner.table.update(a=2)),
    ("replaced", lambda owner: setattr(owner, "table", {"a": 2})),
]


@pytest.mark.parametrize("change", [change for _, change in CLASS_CHANGES], ids=[name for name, _ in CLASS_CHANGES])
@pytest.mark.parametrize("meta", [type, type("Meta", (type,), {})])
def test_a_class_is_proved_the_same_by_its_version(meta, change):
    def method(self):
        """One."""

    owner = meta("Owner", (), {"scale": 2, "method": method, "table": {"a": 1}})
    program, value = native(class_guards(owner)), owner()
    for _ in range(4):
        assert agreed(program, (value,))
    [(hits, records, proved)] = program.blocks
    assert proved and hits == 3 and records == 1
    change(owner)
    for _ in range(3):
        assert not agreed(program, (value,))


def test_irrelevant_changes_of_a_class_are_proved_again():
    owner = type("Owner", (), {"scale": 2, "method": other_method, "table": {"a": 1}, "other": 1})
    program, value = native(class_guards(owner)), owner()
    for step in range(3):
        for _ in range(3):
            assert agreed(program, (value,))
        owner.other = step
    [(_, records, _)] = program.blocks
    assert records == 3


def test_a_metaclass_with_a_dict_of_its_own_is_believed_nothing():
    shown = {"scale": 2}

    class Meta(type):
        __dict__ = property(lambda cls: MappingProxyType(shown))

    owner = Meta("Owner", (), {})
    program, value = native([Guard(ItemSource(InstanceDictSource(TypeSource(X)), "scale"), "EQUALS_MATCH", 2)]), owner()
    for _ in range(3):
        assert agreed(program, (value,))
    shown["scale"] = 3
    assert not agreed(program, (value,))


def test_a_metaclass_that_gets_a_dict_of_its_own_is_noticed():
    class Lying(type):
        __dict__ = property(lambda cls: MappingProxyType({"scale": 3}))

    meta = type("Meta", (type("Base", (type,), {}),), {})
    owner = meta("Owner", (), {"scale": 2})
    program, value = native([Guard(ItemSource(InstanceDictSource(TypeSource(X)), "scale"), "EQUALS_MATCH", 2)]), owner()
    for _ in range(3):
        assert agreed(program, (value,))
    meta.other = 1
    assert agreed(program, (value,))
    meta.__bases__ = (Lying,)
    assert not agreed(program, (value,))


def test_no_proxy_of_a_class_outlives_a_check():
    owner = type("Owner", (), {"scale": 2})
    entries = InstanceDictSource(TypeSource(X))
    guards = [Guard(ItemSource(entries, "scale"), "EQUALS_MATCH", 2)]
    program = native(guards, inputs=[entries])
    for _ in range(3):
        [found] = program.extract((owner(),), f)
        assert found["scale"] == 2
    assert not program.blocks[0][2]


class Holder:
    """Anything."""


def test_dict_arguments_are_blocks():
    data = {f"k{i}": i for i in range(100)}
    guards = [Guard(X, "DICT_KEYS", data)]
    guards += [Guard(ItemSource(X, key), "EQUALS_MATCH", value) for key, value in data.items()]
    guards += [Guard(DictValueSource(X, 3), "EQUALS_MATCH", 3)]
    program = native(guards)
    assert agreed(program, (data,)) and agreed(program, (data,)) and program.blocks == ((1, 1, True),)
    assert agreed(program, (dict(data),))
    data["k50"] = True
    assert not agreed(program, (data,))
    data["k50"] = 50
    assert agreed(program, (data,))
    data["k0"] = data.pop("k0")
    assert not agreed(program, (data,))
    assert agreed(program, (OrderedDict((f"k{i}", i) for i in range(100)),))


class OwnOrder(OrderedDict):
    """Its own order of iteration is not asked."""

    def __iter__(self):
        raise AssertionError


@pytest.mark.parametrize("cls", [OrderedDict, OwnOrder])
def test_the_order_of_an_ordered_dict_is_its_own(cls):
    data = cls(a=1, b=2, c=3)
    order = tuple(OrderedDict.keys(data))
    program = native([Guard(X, "DICT_KEYS", order), Guard(ItemSource(X, "a"), "EQUALS_MATCH", 1)])
    nested = native([Guard(AttrSource(X, "t"), "DICT_KEYS", order), Guard(AttrSource(X, "n"), "EQUALS_MATCH", 1)])
    holder = Holder()
    holder.t, holder.n = data, 1
    for key, same in (("c", True), ("b", False), ("c", True), ("a", False), ("b", False), ("c", True)):
        data.move_to_end(key)
        for _ in range(3):
            assert agreed(program, (data,)) is agreed(nested, (holder,)) is same
    data.move_to_end("a", last=False)
    assert agreed(program, (data,))
    del data["b"]
    assert not agreed(program, (data,))
    data["b"] = 2
    assert not agreed(program, (data,))
    data.move_to_end("c")
    assert agreed(program, (data,))
