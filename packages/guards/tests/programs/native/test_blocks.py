"""Blocks by hand-made descriptions, without torch: proofs on every CPython (versions on 3.11, watchers from 3.12)."""

import gc
import importlib.util
import sys
import types
from collections import OrderedDict
from pathlib import Path

import pytest


def load_extension():
    try:
        from framesmith_guards import _check
    except ImportError:
        folder = Path(__file__).parents[3] / "src" / "framesmith_guards"
        files = sorted(folder.glob(f"_check.{sys.implementation.cache_tag}*.so"))
        if not files:
            return None
        spec = importlib.util.spec_from_file_location("framesmith_guards._check", files[0])
        _check = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(_check)
    return _check


native = load_extension()
pytestmark = pytest.mark.skipif(native is None, reason="the extension is not compiled")


def same(a, b):
    return type(a) is type(b) and a == b


def same_keys(value, expected):
    return tuple(value) == expected


def instruction(name, dst=-1, a=-1, n=0, address=0, obj=None, operands=()):
    return (native.OPCODES[name], dst, a, -1, n, address, obj, operands)


def program(registers, block, outputs=(), root=0, late=(), same_keys=same_keys):
    """args[0] into register 0, then the block under it, then `late`."""
    early = (instruction("LOAD_ARG", dst=0), instruction("RUN_BLOCK", n=0))
    made = native.Program()
    blocks = ((root, tuple(block), tuple(outputs)),)
    made.load((registers, (*early, *late), (), (), blocks, None, tuple(outputs), same, same_keys, None))
    return made


def attribute_program(value=5):
    return program(
        3,
        [
            instruction("IS_TYPE", a=0, address=id(Plain)),
            instruction("LOAD_DICT", dst=1, a=0, obj="__dict__"),
            instruction("LOAD_ITEM", dst=2, a=1, obj="v"),
            instruction("IS_CONSTANT", a=2, obj=value),
        ],
        outputs=(2,),
    )


class Plain:
    """Has inline attribute values, until its dict is asked for."""

    def __init__(self, v):
        self.v = v
        self.w = 0


def store(thing, value):
    thing.v = value


def f():
    pass


def test_attribute_stores_of_every_kind_are_seen():
    changes = [
        lambda p: store(p, 6),
        lambda p: p.__dict__.update(v=6),
        lambda p: setattr(p, "__dict__", {"v": 6}),
        lambda p: delattr(p, "v"),
        lambda p: p.__dict__.clear(),
        lambda p: p.__dict__.pop("v"),
        lambda p: p.__dict__.__setitem__("v", 6),
        lambda p: setattr(p, "__class__", type("Other", (), {})),
        lambda p: object.__setattr__(p, "v", 6),
    ]
    for change in changes:
        made, thing = attribute_program(), Plain(5)
        for _ in range(4):
            assert made((thing,), f)
        assert made.blocks == ((3, 1, True),)
        change(thing)
        assert not made((thing,), f)


def test_specialised_stores_are_seen():
    made, thing = attribute_program(), Plain(5)
    for value in [5, 6, 5] * 50:  # long enough for the interpreter to specialise the store
        store(thing, value)
        assert made((thing,), f) is (value == 5)
        store(Plain(1), 2)


def namespace_program(value=5):
    """args[0] is a dict with a dict `space`, whose entry `v` is `value`."""
    return program(
        3,
        [
            instruction("LOAD_ITEM", dst=1, a=0, obj="space"),
            instruction("LOAD_ITEM", dst=2, a=1, obj="v"),
            instruction("IS_CONSTANT", a=2, obj=value),
        ],
        outputs=(2,),
    )


def by_subscript(space, value):
    space["v"] = value


def by_union(space, value):
    space |= {"v": value}


def by_update(space, value):
    space.update(v=value)


def by_deletion(space, value):
    del space["v"]
    space.setdefault("v", value)


def by_clearing(space, value):
    space.clear()
    space["v"] = value


def by_popping(space, value):
    space.pop("v")
    space.update([("v", value)])


def by_replacing_all(space, value):
    while space:
        space.popitem()
    space.__ior__({"v": value, "w": 1})


class Wide:
    """More attributes than stand inside an instance, so that they are in its dict alone."""

    def __init__(self):
        self.__dict__.update({f"a{k}": k for k in range(60)}, v=5)


def by_deleted_attribute(owner, value):
    del owner.v
    owner.v = value


def test_every_way_to_change_a_dict_is_seen_when_specialised():
    def store_global(owner, value):
        owner.store(value)

    ways = [
        (dict(v=5), by_subscript),
        (dict(v=5), by_union),
        (dict(v=5), by_update),
        (dict(v=5), by_deletion),
        (dict(v=5), by_clearing),
        (dict(v=5), by_popping),
        (dict(v=5), by_replacing_all),
    ]
    for space, change in ways:
        hits, records, _ = seen_by(namespace_program(), space, space, change)
        assert hits >= 4 * records > 100
    module = types.ModuleType("spaces")
    exec("def store(value):\n    global v\n    v = value\nv = 5", vars(module))
    for owner in (module, Wide(), Plain(5), types.SimpleNamespace(v=5)):  # a Plain's is never proved on 3.13
        for change in (store, by_deleted_attribute):
            seen_by(namespace_program(), owner.__dict__, owner, change)
    seen_by(namespace_program(), vars(module), module, store_global)


def seen_by(made, space, owner, change):
    outer, other = {"space": space}, {"v": 1}
    for value in [5, 5, 5, 6, 5, 6] * 30:
        change(owner, value)
        for _ in range(6):  # often enough that proofs go on being recorded
            assert made((outer,), f) is (value == 5)
        by_subscript(other, value)  # a dict that nobody looks at
    return made.blocks[0]


@pytest.mark.skipif(not hasattr(types, "LazyImportType"), reason="this CPython imports no module lazily")
@pytest.mark.parametrize("resolve", [lambda module: module.use(), lambda module: module.v])
def test_the_import_of_a_lazy_module_is_seen(resolve, tmp_path, monkeypatch):
    (tmp_path / "imported_late.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "imported_late", raising=False)
    module = types.ModuleType("spaces")
    exec("lazy import imported_late as v\ndef use():\n    return v", vars(module))
    made = program(
        3,
        [instruction("LOAD_ITEM", dst=1, a=0, obj="space"), instruction("LOAD_ITEM", dst=2, a=1, obj="v")],
        outputs=(2,),
    )
    outer = {"space": vars(module)}
    for _ in range(4):
        (found,) = made.run_extract((outer,), f)
        assert type(found) is types.LazyImportType
    resolve(module)
    (found,) = made.run_extract((outer,), f)
    assert found is sys.modules["imported_late"]


def test_other_objects_at_the_same_address():
    made = attribute_program()
    for value in range(300):
        thing = Plain(5 if value % 2 else 6)
        assert made((thing,), f) is bool(value % 2)
        assert made((thing,), f) is bool(value % 2)
        del thing
        gc.collect() if value % 50 == 0 else None


def test_nested_dicts_and_their_order():
    outer = {"inner": {"a": 1, "b": 2}, "items": OrderedDict(x=1)}
    made = program(
        5,
        [
            instruction("LOAD_ITEM", dst=1, a=0, obj="inner"),
            instruction("HAS_KEYS", a=1, obj=("a", "b")),
            instruction("LOAD_ITEM", dst=2, a=1, obj="b"),
            instruction("IS_CONSTANT", a=2, obj=2),
            instruction("LOAD_ITEM", dst=3, a=0, obj="items"),
            instruction("HAS_LENGTH", a=3, n=1),
            instruction("LOAD_VALUE", dst=4, a=1, n=0),
            instruction("IS_CONSTANT", a=4, obj=1),
        ],
        outputs=(4,),
    )
    assert made((outer,), f) and made((outer,), f) and made.blocks == ((1, 1, True),)
    assert made.run_extract((outer,), f) == (1,)
    outer["inner"]["a"] = outer["inner"].pop("a")
    assert not made((outer,), f)
    outer["inner"] = {"a": 1, "b": 2}
    assert made((outer,), f) and made((outer,), f)
    outer["items"]["y"] = 2
    assert not made((outer,), f)
    outer["items"].popitem()
    assert made((outer,), f)
    outer["other"] = 1
    assert made((outer,), f)
    del outer["inner"]
    assert not made((outer,), f)


def test_programs_share_dicts_and_die_separately():
    thing = Plain(5)
    programs = [attribute_program() for _ in range(20)]
    assert all(made((thing,), f) and made((thing,), f) for made in programs)
    del programs[:10]
    assert all(made((thing,), f) for made in programs)
    thing.w = 1
    assert all(made((thing,), f) for made in programs)
    thing.v = 6
    assert not any(made((thing,), f) for made in programs)
    del thing
    gc.collect()
    del programs


def test_a_change_between_the_check_and_the_proof_is_not_proved_away():
    outer = {"v": 5, "inner": {"".join(["ke", "y"]): 1}}

    def meddling(value, expected):
        outer["v"] = 6
        return tuple(value) == expected

    made = program(
        3,
        [
            instruction("LOAD_ITEM", dst=1, a=0, obj="v"),
            instruction("IS_CONSTANT", a=1, obj=5),
            instruction("LOAD_ITEM", dst=2, a=0, obj="inner"),
            instruction("HAS_KEYS", a=2, obj=("".join(["k", "ey"]),)),
        ],
        same_keys=meddling,
    )
    made((outer,), f)
    assert outer["v"] == 6
    assert not made((outer,), f)


def test_dicts_that_die_while_proved():
    made = attribute_program()
    for _ in range(100):
        thing = Plain(5)
        thing.__dict__ = {"v": 5}
        assert made((thing,), f) and made((thing,), f)
        thing.__dict__ = {"v": 6}
        assert not made((thing,), f)


def test_bad_descriptions_are_refused():
    for broken in [(), (1, 2), (1, ((99, 0, 0, 0, 0, 0, None, ()),), (), (), (), None, (), same, same_keys)]:
        with pytest.raises((TypeError, ValueError)):
            native.Program().load(broken)
    with pytest.raises(ValueError, match="out of range"):
        program(1, [instruction("IS", a=7)])
    with pytest.raises(ValueError, match="no other block"):
        program(1, [instruction("RUN_BLOCK")])
    with pytest.raises(TypeError, match="is a tuple"):
        native.Program().load([])
    with pytest.raises(RuntimeError, match="once"):
        attribute_program().load(())
